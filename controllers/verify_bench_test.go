package controllers

import (
	"context"
	"testing"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
)

// idleBackend finds the rules as they should be.
type idleBackend struct{ *fakeBackend }

func (idleBackend) Apply(context.Context, podnet.Place, iptables.Ruleset) (iptables.Outcome, error) {
	return iptables.Outcome{}, nil
}

// BenchmarkCheck is the core's part of a check that finds nothing: without the kernel's, and without the watch cache's copy of the pod.
func BenchmarkCheck(b *testing.B) {
	core := newBench(b)
	core.Backend = idleBackend{core.backend}
	if _, err := core.Ensure(b.Context(), Watch, core.sandbox); err != nil {
		b.Fatal(err)
	}
	w := NewWriter(nil, nil, nil)
	core.Reporter = w
	e, _ := core.Ledger.Of("uid-1")
	for b.Loop() {
		if _, err := core.Ensure(b.Context(), Verify, e.Sandbox); err != nil {
			b.Fatal(err)
		}
	}
}
