package e2e

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
)

const keyRequiredPlugins = "required-plugins.noderesource.dev"

// awaitPolicy waits until the API server prepares pods as this run's values say. It reads its policies anew some moments after
// they have changed. Older API servers prepare no pods: the hooks of the runtime do not need it, a test of anything else is skipped.
func (s *space) awaitPolicy(t testing.TB) {
	t.Helper()
	switch {
	case s.isKubernetes(t, "1.36"):
	case slices.Contains([]string{"nri", "cni"}, hook()):
		return
	default:
		t.Skip("this API server has no MutatingAdmissionPolicy: it is older than Kubernetes 1.36")
	}
	eventually(t, "the policy that prepares pods", func(ctx context.Context) error {
		pod, err := s.pods().Create(ctx, dialer("trial", asked(), 0, int(worldPort)), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			err = isPrepared(pod)
		}
		return err
	})
}

// isKubernetes reports whether the cluster's Kubernetes is a release, such as 1.36, or newer.
func (s *space) isKubernetes(t testing.TB, release string) bool {
	t.Helper()
	info, err := s.api.Discovery().ServerVersion()
	must(t, err)
	is, err := utilversion.ParseGeneric(info.GitVersion)
	must(t, err)
	return is.AtLeast(utilversion.MustParseGeneric(release))
}

func isPrepared(pod *corev1.Pod) error {
	_, required := pod.Annotations[keyRequiredPlugins]
	waits := len(pod.Spec.InitContainers) > 0
	switch {
	case len(pod.Spec.ReadinessGates) == 0:
		return errors.New("it adds no readiness gate")
	case required != slices.Contains([]string{"required", "powercut", "nodes"}, hook()):
		return errors.New("it does not say as it should whether the plugin is required")
	case waits != (hook() == "wait"):
		return errors.New("it does not add the container that waits as it should")
	}
	return nil
}
