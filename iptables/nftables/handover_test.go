package nftables

import (
	"context"
	"errors"
	"sync"
	"testing"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// together has two agents' backends work on one namespace at the same time, again and again.
func together(t *testing.T, rounds int, f func(agent byPath, number, round int) error) {
	t.Helper()
	agents := [2]byPath{newByPath(t), newByPath(t)}
	for round := range rounds {
		var errs [2]error
		var wg sync.WaitGroup
		for number, agent := range agents {
			wg.Go(func() { errs[number] = f(agent, number, round) })
		}
		wg.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
}

// The old and the new agent of an update are told of the same pod at the same instant.
func TestTwoAgentsProgramAFreshNamespaceOnce(t *testing.T) {
	want := rules(t, nil)
	for range 20 {
		ns := kerneltest.New(t)
		var mu sync.Mutex
		changes := 0
		together(t, 1, func(b byPath, _, _ int) error {
			out, err := b.Apply(t.Context(), ns.Path(), want)
			mu.Lock()
			defer mu.Unlock()
			if out.Changed() {
				changes++
			}
			return err
		})
		if changes != 1 {
			t.Fatalf("the rules were written %d times", changes)
		}
	}
}

// And they may want different rules, where the update changed a value: then the namespace holds those of the one or of the
// other, whole, and either agent sees which.
func TestTwoAgentsThatDisagreeLeaveWholeRules(t *testing.T) {
	ns := kerneltest.New(t)
	wants := [2]iptables.Ruleset{
		rules(t, func(s *iptables.Spec) { s.ExcludeInboundPorts = []uint16{15020, 15090} }),
		rules(t, func(s *iptables.Spec) { s.Mode, s.ExcludeInboundPorts = iptables.ModeTProxy, []uint16{15020} }),
	}
	var last [2]byPath
	together(t, 40, func(b byPath, number, _ int) error {
		last[number] = b
		_, err := b.Apply(t.Context(), ns.Path(), wants[number])
		return err
	})
	held := 0
	for _, b := range last {
		for _, want := range wants {
			drift, err := b.Verify(t.Context(), ns.Path(), want)
			if err != nil {
				t.Fatal(err)
			}
			if len(drift) == 0 {
				held++
			}
		}
	}
	if held != 2 {
		t.Errorf("the two agents see %d whole rule sets, want each to see one", held)
	}
	for number, b := range last { // whoever comes last has its way, also where it remembers to have been here
		mustApply(t, b, ns, wants[number])
		if drift, err := b.Verify(t.Context(), ns.Path(), wants[number]); err != nil || len(drift) > 0 {
			t.Errorf("agent %d: drift %q, error %v", number, drift, err)
		}
	}
}

func TestTwoAgentsTakeRulesAwayOnce(t *testing.T) {
	want := rules(t, nil)
	for range 10 {
		ns := kerneltest.New(t)
		mustApply(t, newByPath(t), ns, want)
		together(t, 1, func(b byPath, number, _ int) error {
			take := map[int]func(context.Context, string) (bool, error){0: b.Remove, 1: b.Yield}[number]
			_, err := take(t.Context(), ns.Path())
			return err
		})
		mustBeEmpty(t, ns)
	}
}

func mustBeEmpty(t *testing.T, ns *netns.NS) {
	t.Helper()
	if present, err := newByPath(t).Present(t.Context(), ns.Path()); err != nil || present {
		t.Errorf("present %v, error %v", present, err)
	}
}
