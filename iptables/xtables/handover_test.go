package xtables

import (
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// The old and the new agent of an update are called for the same pod at the same time, and want different rules: nobody
// fails, and what is there in the end is what the one or the other wants. In the agent's container the usual lock of
// iptables-legacy is not to be had.
func TestTwoAgentsLeaveWholeRules(t *testing.T) {
	wants := [2]iptables.Ruleset{rules(t, nil), rules(t, tproxyAndDNS)}
	for _, flavour := range flavours() {
		t.Run(string(flavour), func(t *testing.T) {
			t.Setenv("XTABLES_LOCKFILE", "")
			ns := kerneltest.New(t)
			agents := [2]byPath{newBackend(t, flavour), newBackend(t, flavour)}
			for _, b := range agents {
				b.own.programs.environ = environ(filepath.Join(t.TempDir(), "no", "lock"))
			}
			for round := range 8 {
				began := time.Now()
				err := applyBoth(t, ns, agents, wants)
				if time.Since(began) > lockLimit { // on a slow machine one has gone on beside the other, and the next call finishes it
					_, err = agents[0].Apply(t.Context(), ns.Path(), wants[0])
				}
				if err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
			}
			first, err := agents[0].Verify(t.Context(), ns.Path(), wants[0])
			second, errSecond := agents[1].Verify(t.Context(), ns.Path(), wants[1])
			if err := errors.Join(err, errSecond); err != nil || (len(first) == 0) == (len(second) == 0) {
				t.Errorf("what is there differs from what the agents want by %q and %q, error %v", first, second, err)
			}
		})
	}
}

// lockLimit is how long an agent waits for another one, as NS.Alone has it.
const lockLimit = 250 * time.Millisecond

// applyBoth has two agents work at the same time.
func applyBoth(t *testing.T, ns *netns.NS, agents [2]byPath, wants [2]iptables.Ruleset) error {
	t.Helper()
	var errs [2]error
	var wg sync.WaitGroup
	for number, b := range agents {
		wg.Go(func() { _, errs[number] = b.Apply(t.Context(), ns.Path(), wants[number]) })
	}
	wg.Wait()
	return errors.Join(errs[:]...)
}
