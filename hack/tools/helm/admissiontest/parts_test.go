package admissiontest

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// switchedOff takes each part away by its value, while the others stay.
func (s *server) switchedOff(t *testing.T) {
	t.Helper()
	for _, c := range []struct {
		values            string
		gate, wait, plugs bool
	}{
		{values: "{admission: {readinessGate: false, waitContainer: true}}", wait: true},
		{values: "{}", gate: true},
		{values: "{admission: {readinessGate: false, requiredPlugins: true}}", plugs: true},
		{values: "{admission: {enabled: true, waitContainer: true, requiredPlugins: true}}", gate: true, wait: true, plugs: true},
		{values: "{admission: {readinessGate: false}}"},
		{values: "{admission: {enabled: true}}", gate: true},
		{values: "{admission: {enabled: false, waitContainer: true, requiredPlugins: true}}"},
	} {
		s.install(t, c.values)
		eventually(t, "the API server follows "+c.values, func(ctx context.Context) error {
			created, err := s.create(ctx, asking(), true)
			if err != nil {
				return err
			}
			if got := parts(created); got != [3]bool{c.gate, c.wait, c.plugs} {
				return fmt.Errorf("gate, container, annotation: %v", got)
			}
			return nil
		})
	}
}

func parts(pod *corev1.Pod) [3]bool {
	_, plugs := pod.Annotations[plugins]
	return [3]bool{hasGate(pod), len(pod.Spec.InitContainers) > 0, plugs}
}
