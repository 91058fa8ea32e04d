package kernel

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// countedApply counts how often all rules of a namespace are read or written.
type countedApply struct {
	Driver
	editor
	applied *int
}

func (b countedApply) Apply(ctx context.Context, ns *netns.NS, want iptables.Ruleset) (iptables.Outcome, error) {
	*b.applied++
	return b.Driver.Apply(ctx, ns, want)
}

// excludingPorts are rules that differ in the elements of a set only.
func excludingPorts(t testing.TB, ports ...uint16) iptables.Ruleset {
	t.Helper()
	s := iptables.DefaultSpec()
	s.ExcludeOutboundPorts = ports
	r, err := iptables.Rules(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// counted is the nftables backend and a namespace that its rules were written to.
func counted(t *testing.T, want iptables.Ruleset, script string) (e Backend, place podnet.Place, ns *netns.NS, applied *int) {
	t.Helper()
	e, ns, applied = allBackends(t)[Nftables], kerneltest.New(t), new(int)
	e.chosen = countedApply{e.chosen, e.chosen.(editor), applied}
	place = podnet.Place{Path: ns.Path(), Identity: idOf(t, e, ns.Path())}
	needCookie(t, place.Identity)
	mustRun(t, ns, script)
	for range 2 {
		mustApplyIn(t, e, place, want)
	}
	*applied = 0
	return e, place, ns, applied
}

func mustApplyIn(t *testing.T, e Backend, place podnet.Place, want iptables.Ruleset) iptables.Outcome {
	t.Helper()
	out, err := e.Apply(t.Context(), place, want)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := e.Look(t.Context(), place, &want); err != nil || len(found.Drift) > 0 {
		t.Fatalf("afterwards: drift %q, error %v", found.Drift, err)
	}
	return out
}

// Other elements are written without reading anything, as long as nothing in the namespace has changed.
func TestApply_otherElements_readsNoRules(t *testing.T) {
	for name, c := range map[string]struct {
		before, between string
		reads           bool
	}{
		"nothing else":            {before: "true", between: "true"},
		"a table of others":       {before: "nft add table inet x", between: "true"},
		"a later table":           {before: "true", between: "nft add table inet x", reads: true},
		"an address that is gone": {before: "true", between: "ip addr del ::6/128 dev lo", reads: true},
		"an element of others":    {before: "true", between: "nft add element inet pod-network-controller exclude-outbound-ports.0 '{ 7 }'", reads: true},
	} {
		t.Run(name, func(t *testing.T) {
			e, place, ns, applied := counted(t, excludingPorts(t, 1), c.before)
			edit := func(port uint16) (changed bool) {
				out := mustApplyIn(t, e, place, excludingPorts(t, 1, port))
				return out.Changed()
			}
			if !edit(100) || *applied > 0 {
				t.Errorf("the rules were read %d times for a port more", *applied)
			}
			mustRun(t, ns, c.between)
			if !edit(101) || !edit(102) || (*applied > 0) != c.reads {
				t.Errorf("the rules were read %d times", *applied)
			}
			*applied = 0
			if edit(102) || *applied > 0 {
				t.Errorf("the same was changed again, or the rules were read %d times", *applied)
			}
		})
	}
}

// Foreign rules before ours are reported from memory, until anything changes or a minute is over.
// A rule about a device that is not there is none of ours, until the device comes: the kernel counts no change of rules then.
func TestApply_deviceOfAForeignRuleComes_isReported(t *testing.T) {
	const drop = "nft 'table inet x {\nchain c { type filter hook output priority -310; oifname wg0 drop; }\n}'"
	e, place, ns, _ := counted(t, excludingPorts(t, 1), drop)
	past := time.Duration(0)
	e.memory.now = func() time.Time { return time.Now().Add(past) }
	report := func() int { return len(mustApplyIn(t, e, place, excludingPorts(t, 1)).Preempted) }
	if n := report(); n != 0 {
		t.Errorf("%d lines about a device that is not there", n)
	}
	mustRun(t, ns, "ip link add wg0 type veth peer name wg1")
	past = preemptedAge
	if n := report(); n != 1 {
		t.Errorf("%d lines a minute after the device came", n)
	}
}

func TestApply_preempted_isRemembered(t *testing.T) {
	const drop = "nft 'table inet x {\nchain c { type filter hook output priority -310; tcp dport 9 drop; }\n}'"
	e, place, ns, applied := counted(t, excludingPorts(t, 1), drop)
	past := time.Duration(0)
	e.memory.now = func() time.Time { return time.Now().Add(past) }
	report := func(port uint16) int { return len(mustApplyIn(t, e, place, excludingPorts(t, port)).Preempted) }
	for _, port := range []uint16{1, 1, 2, 2} { // an edit, too
		if n := report(port); n != 1 || *applied > 0 {
			t.Errorf("%d lines, after %d looks at all rules", n, *applied)
		}
	}
	past = preemptedAge
	if n := report(2); n != 1 || *applied != 1 {
		t.Errorf("after a minute: %d lines, after %d looks", n, *applied)
	}
	mustRun(t, ns, "nft delete table inet x")
	if n := report(2); n != 0 {
		t.Errorf("%d lines about a table that is gone", n)
	}
}

// The rule sets that are kept are bounded, whatever pods ask for.
func TestMemory_manyRuleSets_areBounded(t *testing.T) {
	m := newMemory()
	for i := range uint64(3 * maxKept) {
		m.keep(i, iptables.Ruleset{})
	}
	if len(m.kept) > maxKept {
		t.Errorf("%d are kept", len(m.kept))
	}
	long := iptables.Ruleset{Sets: []iptables.Set{{Prefixes: make([]netip.Prefix, maxKeptElements/3)}}}
	for i := range uint64(10) {
		for range 2 {
			m.keep(1000+i, long)
		}
		if _, ok := m.rules(1000 + i); !ok || m.size > maxKeptElements {
			t.Errorf("%d elements are kept, the last ones: %v", m.size, ok)
		}
	}
}
