package kernel

import (
	"strings"
	"testing"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/test/kerneltest"
)

// Rules of iptables name the loopback interface. Another name for it is an error at every look, also without a change of
// rules. Our rules are repaired nevertheless. The nftables backend does not need the name.
func TestApply_loopbackRenamed_iptablesSaysSo(t *testing.T) {
	const rename, back = "ip link set lo down; ip link set lo name x0; ip link set x0 up", "ip link set x0 down; ip link set x0 name lo; ip link set lo up"
	const text = `the loopback interface is called "x0"`
	for name, e := range allBackends(t) {
		ns, want := kerneltest.New(t), tproxyRules(t)
		place := podnet.Place{Path: ns.Path(), Identity: idOf(t, e, ns.Path())}
		told := func(step string, wanted bool) {
			t.Helper()
			for range 3 { // the last one is answered from memory
				if _, err := e.Apply(t.Context(), place, want); (err != nil) != wanted || err != nil && !strings.Contains(err.Error(), text) {
					t.Errorf("%s, %s: %v", name, step, err)
				}
			}
			found, err := e.Look(t.Context(), place, &want)
			drift := found.Drift
			if err != nil || wanted && len(drift) != 1 || !wanted && len(drift) > 0 || strings.Contains(drift.String(), text) != wanted {
				t.Errorf("%s, %s: drift %s, error %v", name, step, drift, err)
			}
		}
		told("fresh", false)
		mustRun(t, ns, rename)
		told("renamed", e.chosen.BuiltIn())
		mustRun(t, ns, "nft flush ruleset; ip addr flush dev x0 scope global; true")
		told("renamed, and the rules are gone", e.chosen.BuiltIn())
		mustRun(t, ns, back)
		told("named lo again", false)
	}
}

// While nftables holds the rules of a namespace, since iptables cannot use its tables, no rule needs the name.
func TestApply_loopbackRenamedAndTablesUnusable_saysNothing(t *testing.T) {
	p := newHostilePod(t, "iptables nft")
	p.apply(t, true)
	defer own(t, p.pod, hostileCases()["iptables, owned tables"].owned)()
	mustRun(t, p.pod, "ip link set lo down; ip link set lo name x0; ip link set x0 up")
	for _, changes := range []bool{true, false, false} { // the last one is answered from memory
		p.apply(t, changes)
	}
	p.heldBy(t, Nftables)
}
