package node

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/sidecars/rollout"
)

// profiles are the ProxyProfiles of the cluster, compiled.
type profiles struct {
	cache client.Reader
	// noShared reports whether the agent runs no shared proxies.
	noShared bool
	node     string
	// good returns what is known to work of a profile on the node, or nil. It may be nil itself.
	good  func(name string) *profile.Spec
	mu    sync.Mutex
	known map[string]readProfile
}

type readProfile struct {
	name       string
	uid        types.UID
	created    metav1.Time
	generation int64
	number     uint64 // of its versions that were read
	hash       string
	spec       profile.Spec
	// usable is the version to use: if the present one cannot be used (err), an earlier one, or nil.
	usable *profile.Version
	err    error
	held   bool // the node may not use this version yet; only get says so
}

// isOlderThan reports whether an object is a newer version. Two workers may have read the cache in the other order.
func (p readProfile) isOlderThan(object *v1alpha1.ProxyProfile) bool {
	if p.uid == object.UID {
		return p.generation < object.Generation
	}
	return !object.CreationTimestamp.Before(&p.created)
}

// shared reports whether the pods of a node share the proxy.
func (p readProfile) shared() bool { return p.spec.Shared != nil }

func newProfiles(cache client.Reader, node string) *profiles {
	return &profiles{cache: cache, node: node, known: map[string]readProfile{}}
}

// get returns a profile, and why it cannot be used, if so. err is for what may work later.
func (p *profiles) get(ctx context.Context, name string) (found readProfile, refusal string, err error) {
	var object v1alpha1.ProxyProfile
	err = p.cache.Get(ctx, types.NamespacedName{Name: name}, &object)
	switch {
	case apierrors.IsNotFound(err):
		return readProfile{}, fmt.Sprintf("there is no ProxyProfile %q: create it, or choose another one", name), nil
	case err != nil:
		return readProfile{}, "", fmt.Errorf("read ProxyProfile %q: %w", name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known[name]
	if known.isOlderThan(&object) {
		known.name, known.uid, known.created, known.generation = name, object.UID, object.CreationTimestamp, object.Generation
		known.spec, _ = profile.SpecOf(&object.Spec) // Compile says what is wrong with it
		known.hash = known.spec.Hash()
		known.number++
		var present *profile.Version
		if present, known.err = profile.Compile(&object); present == nil {
			present = p.earlier(known)
		}
		if known.usable = present; present != nil {
			present.Number = known.number
		}
		p.known[name] = known
	}
	known.held = rollout.Held(&object, known.hash, p.node)
	if known.usable != nil && known.shared() && p.noShared {
		refusal = fmt.Sprintf("the ProxyProfile %q is shared, and this agent runs no shared proxies (--shared-root is empty): choose one with container or istio", name)
	}
	if known.usable == nil {
		refusal = fmt.Sprintf("the ProxyProfile %q cannot be used: %v", name, known.err)
	}
	return known, refusal, nil
}

// earlier returns the version of a profile to use while its present one cannot be: the last usable version, or the version that is known to work on the
// node. Who may choose it is as the present one says. It is nil if there is none.
func (p *profiles) earlier(known readProfile) *profile.Version {
	var last *profile.Spec
	switch {
	case known.usable != nil:
		last = &known.usable.Spec
	case p.good != nil:
		last = p.good(known.name)
	}
	if last == nil {
		return nil
	}
	return (&profile.Version{Name: known.name, Spec: known.spec}).WithSpec(*last)
}

// last returns a profile as it was read last, even if it is gone or cannot be used.
func (p *profiles) last(ctx context.Context, name string) (found readProfile, known bool) {
	if found, known = p.remembered(name); known {
		return found, known
	}
	_, _, _ = p.get(ctx, name) // this agent has not read it yet
	return p.remembered(name)
}

// remembered is last for a profile that this agent has read.
func (p *profiles) remembered(name string) (found readProfile, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found, known = p.known[name]
	return found, known
}

// forPod is get, and refusal says as well why the pod in its namespace cannot have a proxy of the profile.
func (p *profiles) forPod(ctx context.Context, name string, pod *corev1.Pod, ns *corev1.Namespace) (found readProfile, refusal string, err error) {
	found, refusal, err = p.get(ctx, name)
	if err == nil && refusal == "" {
		refusal = found.usable.Refusal(pod, labelsOf(ns))
	}
	return found, refusal, err
}

func labelsOf(ns *corev1.Namespace) map[string]string {
	if ns == nil {
		return nil
	}
	return ns.Labels
}
