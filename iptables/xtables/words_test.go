package xtables

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// written is what iptables-save would print of a Ruleset.
func written(r iptables.Ruleset) Listing {
	return Listing{rules: snapshot{iptables.IPv4: parse(r.RestoreText(iptables.IPv4)), iptables.IPv6: parse(r.RestoreText(iptables.IPv6))}}
}

// sentences are lines without their chains, whose names and order differ between backends.
func sentences(lines []iptables.Line) (out []string) {
	for _, l := range lines {
		out = append(out, l.Words+" # "+l.Why)
	}
	slices.Sort(out)
	return out
}

func TestBothBackendsHaveTheSameWords(t *testing.T) {
	for name, change := range map[string]func(*iptables.Spec){
		"defaults":       nil,
		"TPROXY and DNS": tproxyAndDNS,
		"ports": func(s *iptables.Spec) {
			s.ExcludeInboundPorts, s.IncludeOutboundPorts = []uint16{1, 2, 3}, []uint16{443}
		},
		"addresses and interfaces": func(s *iptables.Spec) {
			s.ExcludeInterfaces, s.RerouteInterfaces, s.DropInvalid = []string{"net1"}, []string{"k6t"}, true
			s.OwnerGroups.Exclude = []uint32{888}
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := rules(t, change)
			if d := cmp.Diff(sentences(want.Lines()), sentences(written(want).Lines())); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestEveryRuleOfOursHasWords(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test wants repeatable numbers
	for range 300 {
		s := spec(r)
		want, err := iptables.Rules(s)
		if err != nil {
			continue // what a Spec may be is not the question here
		}
		for _, l := range written(want).Lines() {
			if strings.Contains(l.Why, "not ours") || strings.Contains(l.Words, "nothing that our rules do") {
				t.Fatalf("%+v\nof %+v", l, s)
			}
		}
	}
}

func TestDescribeCounts(t *testing.T) {
	for _, flavour := range flavours() {
		ns, b := kerneltest.New(t), newBackend(t, flavour)
		if lines, err := b.Describe(t.Context(), ns.Path()); err != nil || len(lines) > 0 {
			t.Errorf("%s: %d lines, error %v", flavour, len(lines), err)
		}
		mustApply(t, b, ns, rules(t, nil))
		if _, err := kerneltest.Ask(t.Context(), ns, kerneltest.App, "tcp", "", "127.0.0.1:9"); err == nil {
			t.Fatal("somebody answers")
		}
		lines, err := b.Describe(t.Context(), ns.Path())
		if err != nil {
			t.Fatal(err)
		}
		const want = "anything over lo not of user 1337 -> direct"
		i := slices.IndexFunc(lines, func(l iptables.Line) bool { return l.Words == want })
		if i < 0 || lines[i].Packets != 1 || lines[i].Bytes != 60 || !lines[i].HasCounter || lines[i].Chain != "PODNET_OUTBOUND" {
			t.Errorf("%s: no line counts the packet:\n%+v", flavour, lines)
		}
	}
}
