package check

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/diagnostics/cluster"
)

// Proxy is what matters of a Sidecar: a pod's proxy, of its own or shared, as the agent of its node has last seen it.
type Proxy struct {
	Namespace, Pod, Node, Profile string
	State                         v1alpha1.State
	Ready                         bool
	Message                       string
}

// readProxies reads the sidecar manager's objects, where the cluster has its definitions.
func readProxies(ctx context.Context, g Gatherer, f *Facts) (err error) {
	if !f.APIs.Ours || g.Objects == nil {
		return nil
	}
	f.Proxies, err = cluster.All(ctx, decoded[v1alpha1.SidecarList](g, "sidecars"), metav1.ListOptions{}, func(s *v1alpha1.Sidecar) (Proxy, bool) { return proxyOf(s), true })
	if err != nil {
		return err
	}
	f.Shared, err = cluster.All(ctx, decoded[v1alpha1.SidecarProfileList](g, "sidecarprofiles"), metav1.ListOptions{}, func(p *v1alpha1.SidecarProfile) (string, bool) {
		return p.Name, p.Spec.Mode == v1alpha1.ModeShared
	})
	return err
}

// decoded returns what reads a page of one kind. A cluster that has only the other kind's definition has none of this one.
func decoded[L any](g Gatherer, resource string) func(context.Context, metav1.ListOptions) (*L, error) {
	return func(ctx context.Context, o metav1.ListOptions) (*L, error) {
		list := new(L)
		raw, err := g.Objects(ctx, resource, o)
		switch {
		case apierrors.IsNotFound(err):
			return list, nil
		case err != nil:
			return nil, err
		}
		if err := json.Unmarshal(raw, list); err != nil {
			return nil, fmt.Errorf("read %s: %w", resource, err)
		}
		return list, nil
	}
}

func proxyOf(s *v1alpha1.Sidecar) Proxy {
	return Proxy{
		Namespace: s.Namespace, Pod: s.Name, Node: s.Spec.Node, Profile: s.Spec.Profile,
		State: s.Status.State, Ready: s.Status.Ready, Message: s.Status.Message,
	}
}
