package istio

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"
	"istio.io/istio/pkg/bootstrap"
	"istio.io/istio/pkg/config/mesh"
	"istio.io/istio/pkg/util/protomarshal"
	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/api/v1alpha1"
	sidecaristio "istio-pod-network-controller/sidecars/istio"
)

// Variables that an injected proxy and a proxy outside the pod's spec do not share, and why.
var (
	onlyInjected = map[string]string{
		keyProbers:                     "the chart's policy has not seen the pod",
		"ISTIO_PROMETHEUS_ANNOTATIONS": "the pod's annotations stay the application's, so that Prometheus asks it and not pilot-agent",
	}
	onlyComputed = map[string]string{
		"EXIT_ON_ZERO_ACTIVE_CONNECTIONS": "the old of two proxies finishes its connections",
	}
)

// Annotations that the injector writes and nothing in the proxy's container reads, and two whose effect is in PROXY_CONFIG.
var onlyInjectedAnnotations = []string{
	"sidecar.istio.io/status", "sidecar.istio.io/interceptionMode", "traffic.sidecar.istio.io/", "kubectl.kubernetes.io/", "prometheus.io/", keyConfig, keyStatusPort,
}

// comparison is of an injected container with what is computed for the same pod.
type comparison struct {
	injected  *corev1.Pod
	container *corev1.Container
	want      map[string]string
	got       sidecaristio.Proxy
}

// compute is what the proxy manager computes by the ConfigMaps of an installation. The profile has the injected container's limits.
func (i *istio) compute(t *testing.T, pod *corev1.Pod, container *corev1.Container, slot uint32) sidecaristio.Proxy {
	t.Helper()
	of := sidecaristio.ControlPlane{Revision: strings.TrimSuffix(i.revision, "default")}
	m, err := sidecaristio.ReadMesh(of, func(_, name string) (*corev1.ConfigMap, error) {
		return &corev1.ConfigMap{Data: i.configMap(t, name)}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	limits := container.Resources.Limits
	sc := container.SecurityContext
	transparent := sc != nil && sc.Capabilities != nil && slices.Contains(sc.Capabilities.Add, "NET_ADMIN") // for TPROXY
	got, err := m.Proxy(sidecaristio.Pod{Pod: pod, Slot: slot, Transparent: transparent, Resources: v1alpha1.Resources{CPULimit: limits.Cpu(), MemoryLimit: limits.Memory()}})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func proxyOf(t *testing.T, pod *corev1.Pod) *corev1.Container {
	t.Helper()
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name == "istio-proxy" {
			return &c
		}
	}
	t.Fatalf("no proxy in %+v", pod.Spec)
	return nil
}

// environment is what the kubelet makes of a container's variables.
func environment(c *corev1.Container, pod *corev1.Pod) map[string]string {
	out := map[string]string{}
	for _, e := range c.Env {
		value := strings.ReplaceAll(e.Value, "$$", "\x00")
		for name, known := range out {
			value = strings.ReplaceAll(value, "$("+name+")", known)
		}
		value = strings.ReplaceAll(value, "\x00", "$")
		switch from := e.ValueFrom; {
		case from != nil && from.FieldRef != nil:
			value = map[string]string{
				"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "status.podIP": pod.Status.PodIP, "status.hostIP": pod.Status.HostIP,
				"spec.nodeName": pod.Spec.NodeName, "spec.serviceAccountName": pod.Spec.ServiceAccountName,
			}[from.FieldRef.FieldPath]
		case from != nil:
			value = fmt.Sprint(map[string]int64{"limits.cpu": c.Resources.Limits.Cpu().Value(), "limits.memory": c.Resources.Limits.Memory().Value()}[from.ResourceFieldRef.Resource])
		}
		out[e.Name] = value
	}
	return out
}

func (c comparison) args(t *testing.T) {
	t.Helper()
	var want []string
	for _, a := range c.container.Args {
		want = append(want, strings.ReplaceAll(a, "$(POD_NAMESPACE)", c.want["POD_NAMESPACE"]))
	}
	if !slices.Equal(c.got.Args, want) {
		t.Errorf("arguments\n%q, want\n%q", c.got.Args, want)
	}
}

func (c comparison) env(t *testing.T) {
	t.Helper()
	got := map[string]string{}
	for _, v := range c.got.Env {
		got[v.Name] = v.Value
	}
	if len(got) != len(c.got.Env) {
		t.Errorf("a name twice in %+v", c.got.Env)
	}
	for name, value := range c.want {
		switch g, isSet := got[name]; {
		case onlyInjected[name] != "" && !isSet, name == "PROXY_CONFIG":
		case name == "ISTIO_META_POD_PORTS" && g == strings.Join(strings.Fields(value), ""):
		case !isSet || g != value:
			t.Errorf("%s is %q, want %q", name, g, value)
		}
	}
	for name, value := range got {
		if _, isSet := c.want[name]; !isSet && onlyComputed[name] == "" {
			t.Errorf("%s=%s, which no injected proxy has", name, value)
		}
	}
}

// files compares what pilot-agent reads from the files with the injected pod's labels and annotations.
func (c comparison) files(t *testing.T) {
	t.Helper()
	labels, err := bootstrap.ParseDownwardAPI(c.got.Files["labels"])
	if err != nil || !maps.Equal(labels, c.injected.Labels) {
		t.Errorf("labels %v, want %v; %v", labels, c.injected.Labels, err)
	}
	got, err := bootstrap.ParseDownwardAPI(c.got.Files["annotations"])
	want := maps.Clone(c.injected.Annotations)
	for _, key := range onlyInjectedAnnotations {
		maps.DeleteFunc(want, func(name, _ string) bool { return strings.HasPrefix(name, key) })
		maps.DeleteFunc(got, func(name, _ string) bool { return strings.HasPrefix(name, key) })
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("annotations %v, want %v; %v", got, want, err)
	}
}

// config compares what pilot-agent makes of PROXY_CONFIG and of the annotations' file with what it makes of an injected pod's.
func (c comparison) config(t *testing.T) {
	t.Helper()
	got, want := c.effective(t), effective(t, c.want["PROXY_CONFIG"], c.injected.Annotations)
	if got, want := inYAML(t, got), inYAML(t, want); got != want {
		t.Errorf("PROXY_CONFIG means\n%s, want\n%s", got, want)
	}
	if got.StatusPort != c.got.StatusPort || got.ProxyAdminPort != c.got.AdminPort {
		t.Errorf("ports %d and %d, want %d and %d", c.got.StatusPort, c.got.AdminPort, got.StatusPort, got.ProxyAdminPort)
	}
}

func inYAML(t *testing.T, config *meshconfig.ProxyConfig) string {
	t.Helper()
	text, err := protomarshal.ToYAML(config)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (c comparison) effective(t *testing.T) *meshconfig.ProxyConfig {
	t.Helper()
	file, err := bootstrap.ParseDownwardAPI(c.got.Files["annotations"])
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(c.got.Env, func(v sidecaristio.Variable) bool { return v.Name == "PROXY_CONFIG" })
	return effective(t, c.got.Env[i].Value, file)
}

// effective is the configuration that pilot-agent has in the end (pilot/cmd/pilot-agent/config).
func effective(t *testing.T, text string, annotations map[string]string) *meshconfig.ProxyConfig {
	t.Helper()
	out := mesh.DefaultMeshConfig()
	for _, layer := range []string{text, annotations[keyConfig]} {
		if layer == "" {
			continue
		}
		var err error
		if out, err = mesh.ApplyProxyConfig(layer, out); err != nil {
			t.Fatalf("%v: %s", err, layer)
		}
	}
	if value, isSet := annotations[keyStatusPort]; isSet {
		if _, err := fmt.Sscan(value, &out.DefaultConfig.StatusPort); err != nil {
			t.Fatal(err)
		}
	}
	return out.DefaultConfig
}

func (c comparison) volumes(t *testing.T) {
	t.Helper()
	rootCert := ""
	for _, v := range c.injected.Spec.Volumes {
		switch v.Name {
		case "istio-token":
			token := v.Projected.Sources[0].ServiceAccountToken
			if token.Audience != c.got.Audience || *token.ExpirationSeconds != c.got.TokenSeconds {
				t.Errorf("token for %s of %d s, want %+v", c.got.Audience, c.got.TokenSeconds, token)
			}
		case "istiod-ca-cert":
			rootCert = v.ConfigMap.Name
		}
	}
	if c.got.RootCert != rootCert {
		t.Errorf("root certificate in %q, want %q", c.got.RootCert, rootCert)
	}
}
