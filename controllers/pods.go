package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/internal/podnet"
)

// Reader reads pods and namespaces from the watch cache, and what is not there yet from the API server.
type Reader struct{ Cache, Live client.Reader }

// Pod returns the pod that a sandbox belongs to.
func (r Reader) Pod(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	return find(ctx, s.Namespace, s.Name, isOf(s), r.Cache, r.Live)
}

// Current returns the pod that a sandbox belongs to as the API server has it now.
func (r Reader) Current(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	return find(ctx, s.Namespace, s.Name, isOf(s), r.Live)
}

func isOf(s podnet.Sandbox) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool { return string(pod.UID) == s.UID }
}

// UID returns the UID of the pod with a name, for hooks that do not learn it. The cache may not know yet that a predecessor of that name is gone, so it
// is used only while the API server does not answer soon.
func (r Reader) UID(ctx context.Context, namespace, name string) (string, error) {
	stays := func(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil }
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	pod, err := find(soon, namespace, name, stays, r.Live)
	if err != nil && !errors.Is(err, podnet.ErrNoPod) {
		pod, err = find(ctx, namespace, name, stays, r.Cache, r.Live)
	}
	if err != nil {
		return "", err
	}
	return string(pod.UID), nil
}

// find returns the pod with a name if matches accepts it. The cache may still hold an older pod of that name.
func find(ctx context.Context, namespace, name string, matches func(*corev1.Pod) bool, readers ...client.Reader) (*corev1.Pod, error) {
	for _, from := range readers {
		pod := &corev1.Pod{}
		err := from.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, pod)
		switch {
		case err == nil && matches(pod):
			return pod, nil
		case err != nil && !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("get pod: %w", err)
		}
	}
	return nil, podnet.ErrNoPod
}

// Namespace returns a namespace's metadata, or nil if there is no such namespace.
func (r Reader) Namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	return findNamespace(ctx, name, r.Cache, r.Live)
}

// CurrentNamespace is Namespace as the API server has it now.
func (r Reader) CurrentNamespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	return findNamespace(ctx, name, r.Live)
}

func findNamespace(ctx context.Context, name string, readers ...client.Reader) (*corev1.Namespace, error) {
	for _, from := range readers {
		// The cache holds metadata only; reading the whole object would start a second informer.
		meta := &metav1.PartialObjectMetadata{}
		meta.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"})
		err := from.Get(ctx, types.NamespacedName{Name: name}, meta)
		switch {
		case err == nil:
			return &corev1.Namespace{ObjectMeta: meta.ObjectMeta}, nil
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("get namespace: %w", err)
		}
	}
	return nil, nil
}
