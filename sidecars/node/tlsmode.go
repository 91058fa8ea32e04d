package node

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars/istio"
)

// setTLSMode gives a pod the label by which peers send mTLS to it, or takes it away (nil). The patch has the pod's UID: another pod of the same name
// stays as it is. It is one of pods/status, as the agent's other reports.
func setTLSMode(ctx context.Context, c client.Client, s podnet.Sandbox, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": s.UID, "labels": map[string]any{istio.TLSModeLabel: value}}})
	if err != nil {
		return err
	}
	pod := &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name},
	}
	err = c.Status().Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("patch label %s of pod: %w", istio.TLSModeLabel, err)
	}
	return nil
}
