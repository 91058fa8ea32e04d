package check

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
)

// Proxy is what matters of a Sidecar: a pod's proxy, of its own or shared, as the agent of its node has last seen it.
type Proxy struct {
	Namespace, Pod, Node, Profile string
	State                         v1alpha1.State
	Ready                         bool
	Message                       string
}

// proxies reads the sidecar manager's objects, where the cluster has its definitions.
func (g *Gatherer) proxies(ctx context.Context, f *Facts) error {
	if !f.APIs.Ours || g.Objects == nil {
		return nil
	}
	f.Proxies, f.Shared = nil, nil
	err := g.objects(ctx, "sidecars", func(raw []byte) (string, error) {
		var list v1alpha1.SidecarList
		err := json.Unmarshal(raw, &list)
		for i := range list.Items {
			f.Proxies = append(f.Proxies, proxyOf(&list.Items[i]))
		}
		return list.Continue, err
	})
	if err != nil {
		return err
	}
	return g.objects(ctx, "sidecarprofiles", func(raw []byte) (string, error) {
		var list v1alpha1.SidecarProfileList
		err := json.Unmarshal(raw, &list)
		for i := range list.Items {
			if list.Items[i].Spec.Mode == v1alpha1.ModeShared {
				f.Shared = append(f.Shared, list.Items[i].Name)
			}
		}
		return list.Continue, err
	})
}

// objects reads one kind page by page. A cluster that has only the other kind's definition has none of this one.
func (g *Gatherer) objects(ctx context.Context, resource string, each func(raw []byte) (next string, err error)) error {
	err := paged(func(o metav1.ListOptions) (string, error) {
		raw, err := g.Objects(ctx, resource, o)
		if err != nil {
			return "", err
		}
		next, err := each(raw)
		if err != nil {
			return "", fmt.Errorf("read %s: %w", resource, err)
		}
		return next, nil
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func proxyOf(s *v1alpha1.Sidecar) Proxy {
	return Proxy{
		Namespace: s.Namespace, Pod: s.Name, Node: s.Spec.Node, Profile: s.Spec.Profile,
		State: s.Status.State, Ready: s.Status.Ready, Message: s.Status.Message,
	}
}
