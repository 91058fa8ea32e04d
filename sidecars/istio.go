package sidecars

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/istio"
)

const (
	// istioPod is where pilot-agent finds what the downward API would show of the pod.
	istioPod = "/etc/istio/pod"
	// istioSecrets is where it finds the directories istioTokens and istioRoots, with its token and the mesh's root certificate.
	istioSecrets   = "/var/run/secrets" //nolint:gosec // a path
	istioTokens    = "tokens"
	istioTokenFile = "istio-token"
	istioRoots     = "istio"
	// istioStop has pilot-agent finish its connections and end.
	istioStop = "TERM"
	// istioReady is the page of pilot-agent's status port that Istio's own probe asks, by way of Envoy.
	istioReady = "/healthz/ready"
	// istioHealth and istioMetrics are ports of Envoy's that others call.
	istioHealth, istioMetrics = 15021, 15090
	// istioFile is the file of IstioFacts.
	istioFile = "facts.json"
)

// istioWritable are the directories that pilot-agent and Envoy write to. Each epoch has its own, since sockets in them have fixed names.
func istioWritable() []string {
	return []string{
		"/etc/istio/proxy", "/var/lib/istio/data",
		istioSecrets + "/workload-spiffe-uds", istioSecrets + "/workload-spiffe-credentials", istioSecrets + "/credential-uds",
	}
}

// IstioFacts are the computed settings of an epoch's proxy that are needed while it runs. They are kept in the home, for agents that start later.
type IstioFacts struct {
	// StatusPort is pilot-agent's, and AdminPort Envoy's.
	StatusPort, AdminPort int32
	// Labels reports whether the pod gets istio.TLSModeLabel: its owner has not chosen another value.
	Labels bool
	// Aside says what injection would do for the pod and this proxy does not, or is "".
	Aside string
}

// IstioFacts returns what was computed for an epoch's proxy. Of a proxy that is not Istio's nothing was.
func (h Homes) IstioFacts(s podnet.Sandbox, epoch uint32) IstioFacts {
	return istioFacts(h.of(keyOf(s)), epoch)
}

func istioFacts(h home, epoch uint32) (out IstioFacts) {
	text, err := os.ReadFile(filepath.Join(istioHome(h, epoch), istioFile))
	if err != nil || json.Unmarshal(text, &out) != nil {
		return IstioFacts{}
	}
	return out
}

// istioHome is the directory of what only Istio's proxy of an epoch has.
func istioHome(h home, epoch uint32) string { return filepath.Join(h.path, "istio-"+number(epoch)) }

// prepareIstio makes the directories that a computed proxy writes to, anew, and keeps the facts.
func prepareIstio(h home, l launch) error {
	dir, o := istioHome(h, l.epoch), l.owner
	if err := os.RemoveAll(dir); err != nil || l.istio == nil {
		return err
	}
	err := makeDir(dir, o)
	for _, writable := range istioWritable() {
		err = errors.Join(err, makeDir(filepath.Join(dir, path.Base(writable)), o))
	}
	if err != nil {
		return err
	}
	mode, chosen := l.pod.Labels[istio.TLSModeLabel]
	return ReplaceFile(filepath.Join(dir, istioFile), IstioFacts{
		StatusPort: l.istio.StatusPort, AdminPort: l.istio.AdminPort, Labels: !chosen || mode == istio.TLSModeIstio, Aside: Clip(strings.Join(l.istio.NotHonoured, "; "), MaxMessage),
	})
}

// withIstio returns the launch with what Istio's injector would have added to the pod, if the profile names a control plane.
func (l launch) withIstio(ctx context.Context, from ControlPlanes) (launch, error) {
	of, p := l.profile.Spec.Istio, *l.profile
	if of == nil {
		return l, nil
	}
	mesh, err := istio.ReadMesh(*of, func(namespace, name string) (*corev1.ConfigMap, error) { return from.ConfigMapOf(ctx, namespace, name) })
	if err != nil {
		return l, err
	}
	proxy, err := mesh.Proxy(istio.Pod{Pod: l.pod, Slot: l.epoch % slots, Profile: p.Spec, Env: l.variables()})
	if err != nil {
		return l, fmt.Errorf("proxy of Istio: %w", err)
	}
	if p.Spec.Handover == v1alpha1.HandoverReusePort {
		p.Spec.StopSignal = istioStop
	}
	p.Spec.Command, p.Spec.Args = proxy.Command, proxy.Args
	p.Spec.Secrets = []v1alpha1.SecretSource{{
		Name: istioTokens, ServiceAccountToken: &v1alpha1.ServiceAccountToken{Audience: proxy.Audience, ExpirationSeconds: proxy.TokenSeconds},
	}}
	if proxy.RootCert != "" {
		p.Spec.Secrets = append(p.Spec.Secrets, v1alpha1.SecretSource{Name: istioRoots, ConfigMap: &v1alpha1.ConfigMapKeys{Name: proxy.RootCert}})
	}
	l.profile, l.istio = &p, &proxy
	return l, nil
}

// istioMounts are what a computed proxy sees of the home beside what all proxies see.
func (l launch) istioMounts(h home) []sidecar.Mount {
	if l.istio == nil {
		return nil
	}
	out := []sidecar.Mount{{Host: h.files(l.epoch), Container: istioPod, ReadOnly: true, Relabel: true}}
	for _, s := range l.profile.Spec.Secrets {
		out = append(out, sidecar.Mount{Host: filepath.Join(h.secrets(l.epoch), s.Name), Container: path.Join(istioSecrets, s.Name), ReadOnly: true, Relabel: true})
	}
	for _, dir := range istioWritable() {
		out = append(out, sidecar.Mount{Host: filepath.Join(istioHome(h, l.epoch), path.Base(dir)), Container: dir, Relabel: true})
	}
	return out
}
