package intent

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/iptables"
)

// dice make pods of every shape.
type dice struct{ *rand.Rand }

func newDice(seed uint64) dice {
	return dice{rand.New(rand.NewPCG(seed, 7))} //nolint:gosec // a test wants repeatable numbers
}

func (d dice) one(values ...string) string { return values[d.IntN(len(values))] }

// seldom is the first value most of the time.
func (d dice) seldom(usual string, others ...string) string {
	if d.maybe(12) {
		return d.one(others...)
	}
	return usual
}

// maybe is true in one of n times.
func (d dice) maybe(n int) bool { return d.IntN(n) == 0 }

func (d dice) id() *int64 {
	if d.maybe(3) {
		return nil
	}
	id := []int64{0, 1000, 1337, 1337, 2000}[d.IntN(5)]
	return &id
}

func (d dice) context() *corev1.SecurityContext {
	if d.maybe(3) {
		return nil
	}
	out := &corev1.SecurityContext{RunAsUser: d.id(), RunAsGroup: d.id(), ReadOnlyRootFilesystem: new(bool)}
	if d.maybe(2) {
		out.AllowPrivilegeEscalation = new(d.maybe(3))
	}
	return out
}

func (d dice) container(name string) corev1.Container {
	c := corev1.Container{Name: name, Image: "image", SecurityContext: d.context(), Command: []string{"x"}}
	if d.maybe(2) {
		c.Args = []string{d.one("proxy", "envoy"), d.one("sidecar", "router"), "--flag"}[:d.IntN(4)]
	}
	for _, name := range []string{
		"ISTIO_META_DNS_CAPTURE", "INVALID_DROP", "ISTIO_OUTBOUND_OWNER_GROUPS", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE",
		"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "DISABLE_ENVOY", "ISTIO_DUAL_STACK", "ISTIO_META_CLUSTER_ID",
	} {
		if d.maybe(8) {
			c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: d.one("true", "false", "*", "1000,2000", "127.0.0.0/8", "x")})
		}
	}
	return c
}

func (d dice) pod() *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: d.seldom("shop", "agents", "kube-system"), Name: "cart", Annotations: d.annotations(), Labels: map[string]string{"app": "cart"},
	}}
	if d.maybe(5) {
		p.Labels[keyInject] = d.one("true", "false", "x")
	}
	for _, name := range []string{"istio-validation", "setup", "logger", "istio-init"} {
		if d.maybe(5) && (name != "istio-init" || d.maybe(4)) {
			c := d.container(name)
			if d.maybe(3) {
				always := corev1.ContainerRestartPolicyAlways
				c.RestartPolicy = &always
			}
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		}
	}
	p.Spec.Containers = append(p.Spec.Containers, d.container("app"))
	switch d.IntN(4) {
	case 0:
	case 1:
		p.Spec.InitContainers = append(p.Spec.InitContainers, d.container(ProxyContainer))
	default:
		p.Spec.Containers = append(p.Spec.Containers, d.container(ProxyContainer))
	}
	if d.maybe(4) {
		common := corev1.EphemeralContainerCommon{Name: "debug", SecurityContext: d.context()}
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: common}}
	}
	d.rest(p)
	return p
}

func (d dice) rest(p *corev1.Pod) {
	if d.maybe(2) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: d.id(), RunAsGroup: d.id(), FSGroup: d.id()}
		if d.maybe(4) {
			p.Spec.SecurityContext.SupplementalGroups = []int64{10, 1337}
		}
	}
	p.Spec.DNSPolicy = corev1.DNSPolicy(d.one("", "ClusterFirst", "Default", "None"))
	if d.maybe(2) {
		p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{d.one("1.1.1.1", "fd00::53", "x")}, Searches: []string{"example.com"}}
	}
	p.Spec.HostNetwork = d.maybe(40)
	if d.maybe(20) {
		p.Spec.OS = &corev1.PodOS{Name: corev1.OSName(d.one("linux", "windows"))}
	}
	p.Status.Phase = corev1.PodPhase(d.seldom("Running", "", "Failed", "Succeeded"))
}

func (d dice) annotations() map[string]string {
	values := map[string][]string{
		KeyInitialize: {"true", "true", "true", "true", "false", "x"}, KeyDNSCapture: {"all", "resolv.conf", "resolv.conf", "off"}, keyMode: {"REDIRECT", "TPROXY", "NONE", "x"},
		keyInject: {"true", "false"}, keyInjected: {"{}"}, keyDeployer: {"x"}, keyBuild: {"x"}, keyExcludeInterfaces: {"net1", "lo", "x+"}, keyKubevirt: {"k6t"}, keyReroute: {"net2"}, KeyIPv6: {"capture", "direct"},
		KeyExcludeSources: {"10.0.0.0/8", "fd00::/8,192.168.1.1/32", "x"}, KeyExcludeUsers: {"0", "1000-1999,5:443", "x"},
	}
	for _, key := range []string{KeyIncludeInboundPorts, KeyExcludeInboundPorts, KeyIncludeOutboundPorts, KeyExcludeOutboundPorts} {
		values[key] = []string{"80", "8000-8999,7", "400-500", "443", "x"}
	}
	out := map[string]string{"example.com/big": strings.Repeat("x", 100)}
	for _, key := range []string{ // written out, so that one which readAnnotations forgets is missed
		KeyInitialize, KeyOutboundPort, KeyInboundPort, KeyTunnelPort, KeyDNSCapture, KeyIPv6,
		keyMode, keyIncludeCIDRs, keyExcludeCIDRs, keyIncludeInbound, keyExcludeInbound, keyIncludeOutbound, keyExcludeOutbound,
		keyExcludeInterfaces, keyReroute, keyKubevirt, keyInject, keyInjected, keyDeployer, keyBuild,
		KeyIncludeInboundPorts, KeyExcludeInboundPorts, KeyIncludeOutboundPorts, KeyExcludeOutboundPorts, KeyExcludeSources, KeyExcludeUsers,
	} {
		often := 12
		if key == KeyInitialize || key == keyInjected || key == KeyDNSCapture {
			often = 2
		}
		if v := values[key]; d.maybe(often) && v != nil {
			out[key] = d.one(v...)
		} else if d.maybe(often) && v == nil {
			out[key] = d.one("", "80", "8080,443\n", "10.0.0.0/8", "*")
		}
	}
	return out
}

func (d dice) config() Config {
	c := config()
	c.Select = Selection(d.one("annotation", "injected", "either"))
	c.Defaults[settingIPv6] = d.one("capture", "direct")
	c.ClusterDNS = Addrs([]string{"10.96.0.10"})
	return c
}

// verdict is all that Of says, as text.
func verdict(t *testing.T, pod *corev1.Pod, ns *corev1.Namespace, c Config) string {
	t.Helper()
	in, err := Of(pod, ns, c)
	return fmt.Sprintf("%v %v %q %s %+v %q %v", in.Redirect, in.Asked, in.Reason, in.Spec.Hash(), in.Spec, in.Notes, err)
}

// Whoever reads a pod from the cache judges it as whoever reads it from the API server.
func TestStrip_anyPod_asksForTheSame(t *testing.T) {
	outcomes := map[string]int{}
	for seed := range uint64(5000) {
		d := newDice(seed)
		pod, cfg := d.pod(), d.config()
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace, Annotations: map[string]string{}}}
		if d.maybe(4) {
			ns.Annotations = d.annotations()
		}
		ns.Annotations[KeyInitialize] = d.one("true", "")
		before := pod.DeepCopy()
		whole := verdict(t, pod, ns, cfg)
		kept := ns.DeepCopy()
		kept.Annotations = Only(ns.Annotations, ReadsOfNamespace)
		if diff := cmp.Diff(whole, verdict(t, Strip(pod), kept, cfg)); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
		if diff := cmp.Diff(before, pod); diff != "" {
			t.Fatalf("seed %d: the pod was changed: %s", seed, diff)
		}
		if in, err := Of(pod, ns, cfg); err == nil {
			outcomes[string(in.Reason)]++
			if _, err := iptables.Rules(in.Spec); in.Redirect && err != nil && in.Spec.DNS != iptables.DNSResolvConf {
				t.Fatalf("seed %d: no rules: %v", seed, err)
			}
		}
	}
	if outcomes[""] < 500 || len(outcomes) < 15 {
		t.Errorf("the pods are too much alike: %v", outcomes)
	}
}

func TestStrip_anyPod_keepsNothingElse(t *testing.T) {
	pod, _ := asking(annotate("example.com/x", "1", keyMode, "TPROXY"))
	pod.Labels["app"], pod.Labels[keyInject] = "cart", "true"
	pod.Spec.Containers[1].Env = []corev1.EnvVar{{Name: "OTHER", Value: "x"}, {Name: envGroups, Value: "1"}}
	pod.Spec.Containers[1].Args = []string{"proxy", "sidecar", "--big"}
	pod.Spec.Containers[0].Env = pod.Spec.Containers[1].Env
	pod.Spec.Containers[0].Image, pod.Spec.NodeName = "image", "node"
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "cart", Annotations: map[string]string{keyMode: "TPROXY"}, Labels: map[string]string{keyInject: "true"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "app"}, {Name: ProxyContainer, Args: []string{"proxy", "sidecar"}, Env: []corev1.EnvVar{{Name: envGroups, Value: "1"}}},
		}},
	}
	if d := cmp.Diff(want, Strip(pod)); d != "" {
		t.Error(d)
	}
}
