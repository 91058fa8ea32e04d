package controllers

import (
	"errors"
	"testing"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

// While a sandbox is taken down, its namespace's path leads to a plain file for a moment.
func TestASandboxThatIsTakenDownMeanwhileIsNoFailure(t *testing.T) {
	for name, successor := range map[string]map[string]podnet.Sandbox{
		"it has no successor": {}, "it has one": {"uid-1": {ID: "sandbox-2", NetNS: "/netns/2"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.ensure(t, Changed)
			b.backend.err, b.finder.sandboxes = errors.New("not a network namespace"), successor
			known := b.sandbox
			known.ID, known.NetNS = "sandbox-1", "/netns/1"
			result, err := b.Ensure(t.Context(), Verify, known)
			if result != Skipped || !errors.Is(err, podnet.ErrGone) {
				t.Errorf("result %q, error %v", result, err)
			}
			if _, err := b.Ensure(t.Context(), "hook", known); errors.Is(err, podnet.ErrGone) {
				t.Errorf("a sandbox that the runtime is still making counts as gone: %v", err)
			}
			if n := len(b.reporter.reports); n != 2 || b.reporter.reports[0].Status != podreport.StatusInitialized {
				t.Errorf("reported: %+v", b.reporter.reports)
			}
		})
	}
}
