package profile

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/istio"
)

// Paths that a proxy sees.
const (
	PathRun   = "/run/sidecar"
	PathFiles = "/etc/sidecar"
	// PathSecrets has a directory for each secret.
	PathSecrets = "/run/sidecar-secrets" //nolint:gosec // a path
)

// HandoverSocket is the name of the socket in the run directory through which an epoch's HAProxy hands over its listeners.
func HandoverSocket(epoch uint32) string { return "handover-" + number(epoch) + ".sock" }

// AdminSocket is the name of an epoch's admin socket in the run directory.
func AdminSocket(epoch uint32) string { return "admin-" + number(epoch) + ".sock" }

// Instance is one proxy of a version, for one pod.
type Instance struct {
	Version *Version
	Pod     *corev1.Pod // as the API server has it, with the sandbox's addresses
	// Namespace is the pod's, nil if it is not known.
	Namespace *corev1.Namespace
	Sandbox   string
	Epoch     uint32
	// From is the epoch of the proxy that it takes over from, or nil.
	From *uint32
	// HotRestart is an Envoy's epoch in its line, nil for other proxies.
	HotRestart *sidecar.HotRestart
	// Restart is the pod's wish for a new proxy.
	Restart string
	// Istio is what was computed for the proxy of a profile with istio (WithIstio), nil for others.
	Istio *istio.Proxy
}

// Files returns the files that were computed, or renders the profile's.
func (i Instance) Files() (map[string]string, error) {
	if i.Istio != nil {
		return i.Istio.Files, nil
	}
	return renderAll(i.Version, Data{
		Pod: PodDataOf(i.Pod), Namespace: NamespaceData{i.Pod.Namespace, i.egressNames}, Network: networkOf(i.Version),
		Epoch: i.Epoch, Slot: i.Epoch % Slots, HandoverSocket: path.Join(PathRun, HandoverSocket(i.Epoch)), AdminSocket: path.Join(PathRun, AdminSocket(i.Epoch)),
	})
}

func (i Instance) egressNames() ([]intent.EgressName, error) { return intent.EgressNames(i.Namespace) }

// Spec returns the proxy's container, which mounts directories of the node.
func (i Instance) Spec(mounts []sidecar.Mount) sidecar.Spec {
	p := i.Version.Spec
	out := sidecar.Spec{
		Sandbox: i.Sandbox, Epoch: i.Epoch, Image: p.Image, Command: p.Command, Args: append(slices.Clip(p.Args), i.handoverArgs()...),
		Labels: sidecar.Labels{
			PodUID: string(i.Pod.UID), PodNamespace: i.Pod.Namespace, PodName: i.Pod.Name, Profile: i.Version.Name, Hash: i.Version.Hash,
			HotRestart: i.HotRestart, StopSignal: p.StopSignal, Restart: i.Restart,
		},
		Env: i.env(), Mounts: mounts, NetAdmin: p.Transparent, Resources: resources(p.Resources, i.Pod),
	}
	out.UID, out.GID = i.Version.UID(), p.RunAsGroup
	if p.Handover == HandoverHAProxy {
		out.Labels.StopSignal = "USR1" // HAProxy finishes its connections, and as the first process of its namespace ignores TERM
	}
	return out
}

func (i Instance) handoverArgs() []string {
	switch i.Version.Spec.Handover {
	case HandoverHAProxy:
		if i.From == nil {
			return nil
		}
		return []string{"-x", path.Join(PathRun, HandoverSocket(*i.From))}
	case HandoverEnvoy:
		if i.HotRestart != nil {
			return hotArgs(*i.HotRestart, i.Version.DrainLimit())
		}
	case HandoverNone, HandoverReusePort:
	}
	return nil
}

// hotSocket begins the paths of the sockets by which Envoys reach each other: a role and the epoch modulo three follow. Only the pod's proxies
// can enter its directory. An Envoy removes an older one's socket before it binds its own.
const hotSocket = PathRun + "/hot"

// hotArgs are the arguments of Envoy's hot restart. There is no --base-id: it names the shared memory, which lies in a /dev/shm of the pod's
// proxies alone, and with the default socket path abstract sockets, which are not used.
func hotArgs(of sidecar.HotRestart, drain time.Duration) []string {
	seconds := uint32(drain / time.Second)
	return []string{
		"--restart-epoch", number(of.Epoch), "--socket-path", hotSocket, "--socket-mode", "0600",
		"--drain-time-s", number(seconds * 2 / 3), "--parent-shutdown-time-s", number(seconds),
	}
}

func (i Instance) env() (out []string) {
	variables := i.variables()
	if i.Istio != nil {
		variables = i.Istio.Env
	}
	for _, v := range variables {
		out = append(out, v.Name+"="+v.Value)
	}
	return out
}

// variables are the environment that every proxy gets, and the profile's.
func (i Instance) variables() []istio.Variable {
	out := []istio.Variable{{Name: "SIDECAR_EPOCH", Value: number(i.Epoch)}}
	for _, e := range i.Version.Spec.Env {
		value := e.Value
		if e.FieldPath != "" {
			value = i.field(e.FieldPath)
		}
		out = append(out, istio.Variable{Name: e.Name, Value: value})
	}
	return out
}

// field returns a field of the pod, by the path that the schema allows.
func (i Instance) field(fieldPath string) string {
	switch fieldPath {
	case "metadata.name":
		return i.Pod.Name
	case "metadata.namespace":
		return i.Pod.Namespace
	case "metadata.uid":
		return string(i.Pod.UID)
	case "spec.nodeName":
		return i.Pod.Spec.NodeName
	case "spec.serviceAccountName":
		return i.Pod.Spec.ServiceAccountName
	case "status.podIP":
		return i.Pod.Status.PodIP
	case "status.podIPs":
		return strings.Join(addressesOf(i.Pod), ",")
	}
	of := map[string]map[string]string{"metadata.labels": i.Pod.Labels, "metadata.annotations": i.Pod.Annotations}
	name, rest, _ := strings.Cut(fieldPath, "['")
	return of[name][strings.TrimSuffix(rest, "']")]
}

const (
	// PathIstioSecrets is where pilot-agent finds the directories istioTokens, istioRoots and istioRevoked, with its token, the mesh's root
	// certificate, and the list of certificates that are revoked.
	PathIstioSecrets = "/var/run/secrets" //nolint:gosec // a path
	istioTokens      = "tokens"
	istioRoots       = "istio"
	istioRevoked     = istioRoots + "/crl"
	// istioStop has pilot-agent finish its connections and end.
	istioStop = "TERM"
)

// WithIstio returns the instance with what Istio's injector would have added to the pod, by the ConfigMaps of the control plane that its profile
// names.
func (i Instance) WithIstio(mesh *istio.Mesh) (Instance, error) {
	p := *i.Version
	proxy, err := mesh.Proxy(istio.Pod{
		Pod: i.Pod, Slot: i.Epoch % Slots, Network: p.Spec.Network, Resources: p.Spec.Resources, Transparent: p.Spec.Transparent,
		Beside: p.Spec.Handover == HandoverReusePort, Env: i.variables(),
	})
	if err != nil {
		return i, fmt.Errorf("proxy of Istio: %w", err)
	}
	p.Spec.Resources = proxy.Resources
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
	if proxy.RevokedCerts != "" { // within the directory of the roots
		p.Spec.Secrets = append(p.Spec.Secrets, v1alpha1.SecretSource{Name: istioRevoked, ConfigMap: &v1alpha1.ConfigMapKeys{Name: proxy.RevokedCerts, Optional: true}})
	}
	i.Version, i.Istio = &p, &proxy
	return i, nil
}
