package e2e

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hook is the round of hack/e2e.sh, where the agent is installed in one of the ways by which no pod starts without its rules:
//
//   - nri and cni are asked before a pod's first container: TestEarly*;
//   - cni, required (NRI, with an annotation that has the runtime insist on it) and wait (an init container, and nobody who
//     is asked) hold whatever happens to the agent: TestAlways*.
//
// It is empty in the rounds of the backends, where a pod's first packets may come before its rules.
func hook() string { return os.Getenv("E2E_HOOK") }

// reporter is the early hook of this run, or watch where there is none.
func reporter() string {
	switch hook() {
	case "core", "required":
		return "nri"
	case "wait", "":
		return "watch"
	}
	return hook()
}

// isReporter reports whether the details of a pod that asked before it started may name this hook.
func isReporter(name string) bool {
	return name == reporter() || reporter() == "watch" && isLate(name)
}

// isLate reports whether the details of a pod that runs already may name this hook: what the watch cannot program at once is programmed
// by the next check.
func isLate(name string) bool { return name == "watch" || name == "verify" }

// A pod that cannot be redirected as it asks does not start, says why, and starts when it is mended.
//
//e2e:rounds core nri cni
func TestEarlyRefusesWhatCannotBeRedirected(t *testing.T) {
	s := newSpace(t, asked())
	caught := catchAll(t)
	pod := dialer("wrong", map[string]string{keyInitialize: "true", keyExcludeOutbound: "http"}, 0, caught.port)
	s.create(t, pod)
	s.await(t, "wrong", hasStatus(statusFailed))
	s.awaitEvent(t, "wrong", refusedEvent(), keyExcludeOutbound)
	s.annotate(t, "wrong", map[string]any{keyExcludeOutbound: "3306"})
	s.await(t, "wrong", hasDialled)
	s.await(t, "wrong", hasStatus(statusInitialized))
	caught.wantNone(t)
}

// refusedEvent is the reason of the kubelet's event about a pod that the agent refuses: NRI refuses its containers, the CNI chain its sandbox.
func refusedEvent() string {
	if hook() == "cni" {
		return "FailedCreatePodSandBox"
	}
	return "Failed"
}

// awaitEvent waits until an event about a pod says some words.
func (s *space) awaitEvent(t *testing.T, pod, reason, words string) {
	t.Helper()
	eventually(t, reason, func(ctx context.Context) error {
		events, err := s.api.CoreV1().Events(s.name).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Reason == reason && strings.Contains(e.Message, words) {
				return nil
			}
		}
		return errors.New("no event says " + words)
	})
}
