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

// KubeletPods reads pods as the kubelet of the node has them now: the one with a UID, and the newest one with a name. asked is false while pods come
// from the API server. If there is no such pod, the error is podnet.ErrNoPod.
type KubeletPods interface {
	Pod(ctx context.Context, uid string) (pod *corev1.Pod, asked bool, err error)
	Named(ctx context.Context, namespace, name string) (pod *corev1.Pod, asked bool, err error)
}

// Reader reads pods and namespaces from the watch cache, and what is not there yet from where the cache is filled from. Kubelet may be nil.
type Reader struct {
	Cache, Live client.Reader
	Kubelet     KubeletPods
}

// Pod returns the pod that a sandbox belongs to.
func (r Reader) Pod(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	pod, err := find(ctx, r.Cache, s.Namespace, s.Name, isOf(s))
	if errors.Is(err, podnet.ErrNoPod) {
		return r.Current(ctx, s)
	}
	return pod, err
}

// Current returns the pod that a sandbox belongs to as the kubelet or the API server has it now.
func (r Reader) Current(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	if r.Kubelet != nil {
		if pod, asked, err := r.Kubelet.Pod(ctx, s.UID); asked {
			return pod, err
		}
	}
	return find(ctx, r.Live, s.Namespace, s.Name, isOf(s))
}

func isOf(s podnet.Sandbox) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool { return string(pod.UID) == s.UID }
}

// stays reports whether nobody has deleted a pod.
func stays(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil }

// UID returns the UID of the pod with a name, for hooks that do not learn it. The cache may not know yet that a predecessor of that name is gone, so it
// is used only while nobody answers soon who knows.
func (r Reader) UID(ctx context.Context, namespace, name string) (string, error) {
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	pod, err := r.named(soon, namespace, name)
	if err != nil && !errors.Is(err, podnet.ErrNoPod) {
		if pod, err = find(ctx, r.Cache, namespace, name, stays); errors.Is(err, podnet.ErrNoPod) {
			pod, err = r.named(ctx, namespace, name)
		}
	}
	if err != nil {
		return "", err
	}
	return string(pod.UID), nil
}

func (r Reader) named(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if r.Kubelet != nil {
		pod, asked, err := r.Kubelet.Named(ctx, namespace, name)
		switch {
		case asked && err == nil && !stays(pod):
			return nil, podnet.ErrNoPod
		case asked:
			return pod, err
		}
	}
	return find(ctx, r.Live, namespace, name, stays)
}

// find returns the pod with a name if matches accepts it. The cache may still hold an older pod of that name.
func find(ctx context.Context, from client.Reader, namespace, name string, matches func(*corev1.Pod) bool) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := from.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, pod)
	switch {
	case err == nil && matches(pod):
		return pod, nil
	case err != nil && !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("get pod: %w", err)
	}
	return nil, fmt.Errorf("ask the API server: %w", podnet.ErrNoPod)
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
