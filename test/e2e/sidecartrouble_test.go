package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// awaitCounts waits until the profile's status counts so of its present version.
func (m managed) awaitCounts(t *testing.T, want map[string]any) {
	t.Helper()
	eventually(t, "the profile's status", func(ctx context.Context) error {
		profile, err := m.objects.Resource(sidecarKind("proxyprofiles")).Get(ctx, m.profile, metav1.GetOptions{})
		if err != nil {
			return err
		}
		status, _, err := unstructured.NestedMap(profile.Object, "status")
		if err != nil {
			return err
		}
		for key, value := range want {
			if status[key] != value || status["observedGeneration"] != profile.GetGeneration() {
				return fmt.Errorf("want %v of generation %d, it says %v", want, profile.GetGeneration(), status)
			}
		}
		return nil
	})
}

func equal(got any, want int64) error {
	if got != want {
		return fmt.Errorf("got %v, want %d", got, want)
	}
	return nil
}

func hasReason(reason string) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		if got := conditionOf(pod); got.Reason != reason {
			return fmt.Errorf("the condition is %+v", got)
		}
		return nil
	}
}

// sidecarChurn is how many pods with proxies come and go, unless E2E_SIDECAR_CHURN says otherwise.
const sidecarChurn = 10

// A sandbox that is made anew gets rules and a proxy of its own.
//
//e2e:rounds nri
func TestSidecarInANewSandbox(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	pod := m.startManaged(t, plainPod("reborn"))
	old, home := m.sandboxOf(t, pod), m.home(t, pod)
	m.killSandbox(t, old)
	m.awaitSidecar(t, "reborn", func(status map[string]any) error {
		if status["sandbox"] == old.ID || status["ready"] != true {
			return fmt.Errorf("it says %v", status)
		}
		return equal(status["restarts"], 0)
	})
	eventually(t, "the end of the old sandbox's directory", func(context.Context) error {
		if _, err := os.Stat(home); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s is left: %w", home, err)
		}
		return nil
	})
	pod = m.awaitAnswer(t, "reborn")
	m.await(t, "reborn", isReadyNow)
	m.wantProxied(t, pod)
}
