package e2e

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// A profile is waited for as a Deployment is: kubectl wait --for=condition=Upgraded proxyprofile/NAME.
//
//e2e:rounds nri
func TestProxyProfileSaysHowFarItIs(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	m.startManaged(t, plainPod("counted"))
	m.awaitCondition(t, "Upgraded", "Upgraded")
	m.patchProfile(t, map[string]any{"image": missingImage})
	m.awaitCondition(t, "Failed", "Paused")
	m.patchProfile(t, map[string]any{"image": sidecarsImage})
	m.awaitCondition(t, "Upgraded", "Upgraded")
}

// awaitCondition waits until a condition of the profile's present version is True for a reason.
func (m managed) awaitCondition(t *testing.T, kind, reason string) {
	t.Helper()
	eventually(t, "the profile's condition "+kind, func(ctx context.Context) error {
		profile, err := m.objects.Resource(sidecarKind("proxyprofiles")).Get(ctx, m.profile, metav1.GetOptions{})
		if err != nil {
			return err
		}
		status, _, err := unstructured.NestedMap(profile.Object, "status")
		if err != nil {
			return err
		}
		var said struct {
			Conditions []metav1.Condition `json:"conditions"`
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(status, &said); err != nil {
			return err
		}
		c := meta.FindStatusCondition(said.Conditions, kind)
		if c == nil || c.Status != metav1.ConditionTrue || c.Reason != reason || c.ObservedGeneration != profile.GetGeneration() {
			return fmt.Errorf("want %s, its status is %v", reason, status)
		}
		return nil
	})
}
