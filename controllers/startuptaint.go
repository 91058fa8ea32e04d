package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// readyPause is the time between two checks whether the agent is ready. They ask parts of this node only.
const readyPause = time.Second

// Nodes reads a node from the watch cache, and changes it.
type Nodes interface {
	Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error
	Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error
}

// StartupTaint removes the startup taint from the agent's own node. It never adds one.
//
//   - Reconcile is called when the node changes, so also when a deleted node has registered again with the taint.
//   - While the agent is not ready, the taint stays.
//   - Then one patch removes each taint with the key at its index, after a test that it is still there. Other taints are not written.
//   - A patch that fails, for example because somebody else has moved the taints, is made again with back-off.
type StartupTaint struct {
	Nodes Nodes
	Node  string
	// Key is the taint's key: podreport.KeyStartupTaint, or what an autoscaler knows as a startup taint.
	Key string
	// Ready returns an error that says what the agent still lacks, or nil.
	Ready func(context.Context) error
}

// SetupWithManager registers the watch. CacheOptions limit it to the one node.
func (s *StartupTaint) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("startup-taint").For(&corev1.Node{}).
		WithOptions(controller.Options{
			RateLimiter: backOff[reconcile.Request](),
		}).
		Complete(s)
}

// Reconcile reads the agent's node, whatever the request's name is.
func (s *StartupTaint) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	var node corev1.Node
	if err := s.Nodes.Get(ctx, client.ObjectKey{Name: s.Node}, &node); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	steps, effects := removal(s.Key, node.Spec.Taints)
	if len(steps) == 0 {
		return ctrl.Result{}, nil
	}
	if err := s.Ready(ctx); err != nil {
		log.FromContext(ctx).V(1).Info("startup taint left", "reason", err.Error())
		return ctrl.Result{RequeueAfter: readyPause}, nil
	}
	data, err := json.Marshal(steps)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("encode patch: %w", err)
	}
	if err := s.Nodes.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.Node}}, client.RawPatch(types.JSONPatchType, data)); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("remove taint %s: %w", s.Key, err)
	}
	log.FromContext(ctx).Info("startup taint removed", "effects", effects)
	return ctrl.Result{}, nil
}

// patchStep is one operation of a JSON patch.
type patchStep struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value string `json:"value,omitempty"`
}

// removal returns the patch that removes the taints with a key, the last one first, so that the indices of the others stay valid. Each
// removal comes after a test of the key: the patch as a whole fails if one is not there.
func removal(key string, taints []corev1.Taint) (steps []patchStep, effects []corev1.TaintEffect) {
	for i, taint := range slices.Backward(taints) {
		if taint.Key != key {
			continue
		}
		place := fmt.Sprintf("/spec/taints/%d", i)
		steps = append(steps, patchStep{Op: "test", Path: place + "/key", Value: key}, patchStep{Op: "remove", Path: place})
		effects = append(effects, taint.Effect)
	}
	return steps, effects
}
