package agent

import (
	"errors"
	"testing"

	"istio-pod-network-controller/internal/kerneltest"
	"istio-pod-network-controller/internal/podnet"
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
			if _, err := b.Apply(t.Context(), at(ns), want); err != nil {
				t.Fatal(err)
			}
			id, err := b.Identify(ns.Path())
			if err != nil {
				t.Fatal(err)
			}
			if id.Cookie == 0 {
				t.Skip("this kernel names no namespace for ever")
			}
			mustRun(t, ns, flushAll+"; "+istioChain)
			if changed, err := b.Apply(t.Context(), at(ns), want); err != nil || !changed {
				t.Errorf("changed %v, error %v", changed, err)
			}
			if drift, err := b.Verify(t.Context(), at(ns), want); err != nil || len(drift) > 0 {
				t.Error(drift, err)
			}
			if _, err := b.Remove(t.Context(), at(ns)); err != nil {
				t.Fatal(err)
			}
			var others *podnet.ProgrammedByOthersError
			if _, err := b.Apply(t.Context(), at(ns), want); !errors.As(err, &others) {
				t.Errorf("after our rules were taken away: %v, want that it is Istio's", err)
			}
		})
	}
}
