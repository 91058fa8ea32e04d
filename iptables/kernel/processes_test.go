package kernel

import (
	"testing"
	"time"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/xtables"
	"istio-pod-network-controller/test/kerneltest"
)

// Programs are started to change rules, and to read them after a change by somebody else.
func TestApply_iptablesBackend_startsNoProcessWhereNothingHasChanged(t *testing.T) {
	kerneltest.ProgramPath(t, "iptables-nft-restore")
	started := make(chan string, 100)
	choice, err := NewChoice(func(program string, _ time.Duration) { started <- program }, nil)
	if err != nil {
		t.Fatal(err)
	}
	e, ns := choice.Iptables(t.Context(), xtables.NFT), kerneltest.New(t)
	place := podnet.Place{Path: ns.Path(), Identity: idOf(t, e, ns.Path())}
	needCookie(t, place.Identity)
	apply := func(want iptables.Ruleset) int {
		t.Helper()
		if _, err := e.Apply(t.Context(), place, want); err != nil {
			t.Fatal(err)
		}
		n := len(started)
		for range n {
			<-started
		}
		return n
	}
	plain, tproxy := excludingPorts(t, 1), tproxyRules(t)
	for i, step := range []struct {
		script string
		want   iptables.Ruleset
		starts int
	}{
		{"true", plain, 2}, // one a family, which writes
		{"true", plain, 0},
		{"true", tproxy, 4}, // two read, two write
		{"true", tproxy, 0},
		{"iptables-nft -A INPUT -j ACCEPT", tproxy, 2},
		{"true", tproxy, 0},
		{"iptables-nft -t nat -F OUTPUT", tproxy, 3}, // one family is whole
		{"true", tproxy, 0},
	} {
		mustRun(t, ns, step.script)
		if n := apply(step.want); n != step.starts {
			t.Errorf("step %d, after %s: %d programs, want %d", i, step.script, n, step.starts)
		}
	}
	if found, err := e.Look(t.Context(), place, &tproxy); err != nil || len(found.Drift) > 0 {
		t.Errorf("drift %q, error %v", found.Drift, err)
	}
}
