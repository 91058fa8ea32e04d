package profile

import (
	"fmt"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/istio"
)

const (
	// PathIstioSecrets is where pilot-agent finds the directories istioTokens and istioRoots, with its token and the mesh's root certificate.
	PathIstioSecrets = "/var/run/secrets" //nolint:gosec // a path
	istioTokens      = "tokens"
	istioRoots       = "istio"
	// istioStop has pilot-agent finish its connections and end.
	istioStop = "TERM"
)

// WithIstio returns the instance with what Istio's injector would have added to the pod, by the ConfigMaps of the control plane that its profile
// names.
func (i Instance) WithIstio(mesh *istio.Mesh) (Instance, error) {
	p := *i.Version
	proxy, err := mesh.Proxy(istio.Pod{
		Pod: i.Pod, Slot: i.Epoch % Slots, Network: p.Spec.Network, Resources: p.Spec.Resources, Beside: p.Spec.Handover == HandoverReusePort, Env: i.variables(),
	})
	if err != nil {
		return i, fmt.Errorf("proxy of Istio: %w", err)
	}
	if p.Spec.Handover == HandoverReusePort {
		p.Spec.StopSignal = istioStop
	}
	p.Spec.Command, p.Spec.Args = proxy.Command, proxy.Args
	p.Spec.Secrets = []v1alpha1.SecretSource{{
		Name: istioTokens, ServiceAccountToken: &v1alpha1.ServiceAccountToken{Audience: proxy.Audience, ExpirationSeconds: proxy.TokenSeconds},
	}}
	if proxy.RootCert != "" {
		p.Spec.Secrets = append(p.Spec.Secrets, v1alpha1.SecretSource{Name: istioRoots, ConfigMap: &v1alpha1.ConfigMapKeys{Name: proxy.RootCert}})
	}
	i.Version, i.Istio = &p, &proxy
	return i, nil
}
