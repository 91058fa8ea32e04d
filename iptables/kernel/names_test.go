package kernel

import (
	"errors"
	"testing"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/test/kerneltest"
)

const (
	flushAll = `nft flush ruleset; for p in iptables-legacy ip6tables-legacy; do for t in raw mangle nat; do $p -t $t -F; $p -t $t -X; done; done`
	// istioChain is what a process with NET_ADMIN can make as well as Istio.
	istioChain = `iptables-nft -t nat -N ISTIO_OUTPUT && iptables-nft -t nat -A ISTIO_OUTPUT -j RETURN && iptables-nft -t nat -A OUTPUT -j ISTIO_OUTPUT`
)

// A pod that has had rules does not get rid of them, and of the report of it, by a name.
func TestRulesComeBackWhateverNamesThePodMakes(t *testing.T) {
	for name, b := range allBackends(t) {
		t.Run(name, func(t *testing.T) {
			ns, want := kerneltest.New(t), tproxyRules(t)
			_, err := b.Apply(t.Context(), at(ns), want)
			id, errID := b.Identify(ns.Path())
			if err := errors.Join(err, errID); err != nil {
				t.Fatal(err)
			}
			needCookie(t, id)
			mustRun(t, ns, flushAll+"; "+istioChain)
			out, err := b.Apply(t.Context(), at(ns), want)
			drift, errDrift := driftOf(t, b, ns, want)
			if err := errors.Join(err, errDrift); err != nil || !out.Changed() || len(drift) > 0 {
				t.Errorf("changed %q, drift %s, error %v", out.Drift, drift, err)
			}
			_, errRemove := b.Remove(t.Context(), at(ns))
			_, err = b.Apply(t.Context(), at(ns), want)
			var others *podnet.ProgrammedByOthersError
			if errRemove != nil || !errors.As(err, &others) {
				t.Errorf("after our rules were taken away: %v, %v, want that it is Istio's", errRemove, err)
			}
		})
	}
}
