package iptables

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestJoinPorts(t *testing.T) {
	cases := map[string]struct {
		ports    []uint16
		in, want []PortRange
	}{
		"nothing":                    {},
		"overlaps":                   {in: []PortRange{{20, 40}, {10, 30}}, want: []PortRange{{10, 40}}},
		"one inside another":         {in: []PortRange{{10, 40}, {20, 30}}, want: []PortRange{{10, 40}}},
		"neighbours":                 {ports: []uint16{41, 9}, in: []PortRange{{10, 40}}, want: []PortRange{{9, 41}}},
		"a gap of one port":          {ports: []uint16{42}, in: []PortRange{{10, 40}}, want: []PortRange{{10, 40}, {42, 42}}},
		"everything":                 {ports: []uint16{0, 65535}, in: []PortRange{{0, 65535}}, want: []PortRange{{0, 65535}}},
		"both ends, and not between": {in: []PortRange{{65000, 65535}, {0, 100}}, want: []PortRange{{0, 100}, {65000, 65535}}},
	}
	for name, c := range cases {
		if d := cmp.Diff(c.want, JoinPorts(c.ports, c.in)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// The arithmetic of ranges agrees with that of single ports.
func TestSubtractPorts_anyRanges_leavesTheOthers(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3)) //nolint:gosec // a test wants repeatable numbers
		some := func() (out []PortRange) {
			for range r.IntN(6) {
				edge := []uint16{0, 65500}[r.IntN(2)] // the ends of the ports
				a, b := edge+uint16(r.UintN(36)), edge+uint16(r.UintN(36))
				out = append(out, PortRange{min(a, b), max(a, b)})
			}
			return out
		}
		all, except := some(), some()
		left := SubtractPorts(JoinPorts(nil, all), JoinPorts(nil, except))
		for p := range 1 << 16 {
			port := uint16(p)
			want := containsPort(nil, all, port) && !containsPort(nil, except, port)
			if got := containsPort(nil, left, port); got != want {
				t.Fatalf("seed %d: port %d of %v without %v: %v", seed, port, all, except, left)
			}
		}
		if d := cmp.Diff(JoinPorts(nil, left), left); d != "" {
			t.Fatalf("seed %d: not joined: %s", seed, d)
		}
	}
}

func TestRestoreText_manyRanges_fitIntoMultiport(t *testing.T) {
	spec := DefaultSpec()
	for i := range uint16(100) {
		spec.Ranges.ExcludeOutbound = append(spec.Ranges.ExcludeOutbound, PortRange{20000 + 10*i, 20005 + 10*i})
		spec.ExcludeOutboundPorts = append(spec.ExcludeOutboundPorts, 30000+2*i)
	}
	text := mustRules(t, spec).RestoreText(IPv4)
	named := map[string]int{}
	for line := range strings.Lines(text) {
		_, list, ok := strings.Cut(line, "--dports ")
		if !ok || strings.Contains(line, "inbound") {
			continue
		}
		list = strings.Fields(list)[0]
		if slots := len(strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ':' })); slots > maxMultiport {
			t.Errorf("%d slots: %s", slots, list)
		}
		for item := range strings.SplitSeq(list, ",") {
			named[item]++
		}
	}
	for i := range 100 {
		for _, item := range []string{fmt.Sprintf("%d:%d", 20000+10*i, 20005+10*i), fmt.Sprint(30000 + 2*i)} {
			if named[item] != 3 { // twice in the nat table and behind it
				t.Errorf("%s is named %d times", item, named[item])
			}
		}
	}
}

func TestRules_withoutRanges_haveNoSetOfRanges(t *testing.T) {
	for name, spec := range someSpecs() {
		spec.Ranges = Ranges{}
		if slices.ContainsFunc(mustRules(t, spec).Sets, func(s Set) bool { return s.Kind == RangeSet }) {
			t.Errorf("%s: a set of ranges", name)
		}
	}
}
