package intent

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestMistyped_unknownKey_namesTheNearest(t *testing.T) {
	cases := map[string]struct{ in, want string }{
		"a letter too few":                {"traffic.sidecar.istio.io/excludeInboundPort", keyExcludeInbound},
		"another case":                    {"sidecar.istio.io/interceptionmode", keyMode},
		"a wrong prefix":                  {"istio-pod-network-controler/initialize", KeyInitialize},
		"an unknown key of ours":          {"pod-network-controller.istio.io/whatever", "some"},
		"an unknown key of ours, too":     {"istio-pod-network-controller/init", KeyInitialize},
		"Istio's prefix without traffic":  {"sidecar.istio.io/includeInboundPorts", keyIncludeInbound},
		"a short name of Istio's":         {"networking.istio.io/inject", ""},
		"one that is right":               {keyMode, ""},
		"one that the agent writes":       {"pod-network-controller.istio.io/details", ""},
		"the agent's own pod":             {"pod-network-controller.istio.io/agent", ""},
		"one that Istio reads":            {"sidecar.istio.io/proxyCPU", ""},
		"one that others read":            {"example.com/initialize", ""},
		"a value that is no key":          {"pod-network-controller.istio.io/" + strings.Repeat("x", 1000), ""},
		"a prefix of ours without a name": {"pod-network-controller.istio.io/", "some"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := Misplaced(map[string]string{c.in: ""}, nil)
			switch {
			case c.want == "" && len(got) == 0:
			case c.want == "some" && len(got) == 1:
			case c.want == "" || len(got) != 1 || !strings.HasSuffix(got[0], "did you mean "+c.want+"?"):
				t.Errorf("got %q", got)
			}
		})
	}
}

// Notes name settings of a proxy of another name, and a DNS server whose lookups are captured.
func TestOf_settingsOfAProxyOfAnotherName_areNoted(t *testing.T) {
	pod, ns := asking(crewPod(nil, ids{"app": nil, "istio-proxy-1": as(1337, 1337)}))
	pod.Annotations[KeyInitialize] = "true"
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == "istio-proxy-1" {
			pod.Spec.Containers[i].Env = []corev1.EnvVar{{Name: envDNSCapture, Value: "true"}}
		}
	}
	for _, p := range []*corev1.Pod{pod, Strip(pod)} {
		got, err := Of(p, ns, config())
		if notes := strings.Join(got.Notes, "\n"); err != nil || !strings.Contains(notes, envDNSCapture+` in the environment of container "istio-proxy-1" has no effect`) {
			t.Errorf("error %v, notes %q", err, notes)
		}
	}
}

func TestWarnings_dnsServerWithDNSCapture_isTold(t *testing.T) {
	for value, want := range map[string]bool{"all": true, "off": false} {
		pod, ns := asking(annotate(KeyDNSCapture, value))
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 53, Protocol: corev1.ProtocolUDP}}
		in, err := Of(pod, ns, config())
		if got := strings.Join(Warnings(pod, ns, in), "\n"); err != nil || strings.Contains(got, "port 53") != want {
			t.Errorf("%s: error %v, warnings %q", value, err, got)
		}
	}
}

func TestDistance(t *testing.T) {
	for words, want := range map[[2]string]int{
		{"", ""}: 0, {"", "abc"}: 3, {"abc", ""}: 3, {"abc", "abc"}: 0, {"kitten", "sitting"}: 3, {"abc", "acb"}: 2, {"abc", "xabc"}: 1,
	} {
		if got := Distance(words[0], words[1]); got != want {
			t.Errorf("%q: %d, want %d", words, got, want)
		}
	}
}

func TestWarnings(t *testing.T) {
	cases := map[string]struct {
		in   func(*corev1.Pod)
		want []string
	}{
		"none": {func(*corev1.Pod) {}, nil},
		"a label": {
			func(p *corev1.Pod) { p.Labels = map[string]string{KeyInitialize: "true", keyInject: "true"} },
			[]string{KeyInitialize + " is a label: make it an annotation"},
		},
		"settings of a pod that opts out": {
			func(p *corev1.Pod) { p.Annotations[KeyInitialize], p.Annotations[keyExcludeInbound] = "false", "80" },
			[]string{"without effect, since the pod is not redirected: " + keyExcludeInbound},
		},
		"excluded ports beside a list": {
			func(p *corev1.Pod) { p.Annotations[keyIncludeInbound], p.Annotations[keyExcludeInbound] = "80", "81" },
			[]string{keyExcludeInbound + " has no effect: it counts only where " + keyIncludeInbound + " is *"},
		},
		"two keys for interfaces": {
			func(p *corev1.Pod) { p.Annotations[keyReroute], p.Annotations[keyKubevirt] = "a", "b" },
			[]string{keyKubevirt + " has no effect beside " + keyReroute},
		},
		"a variable that is no bool": {
			func(p *corev1.Pod) { setEnv(p, envDropInvalid, "yes"); setEnv(p, envDNSCapture, "true") },
			[]string{`environment of container istio-proxy: INVALID_DROP, value "yes", counts as false: want true or false`},
		},
		"a variable that comes from elsewhere": {
			func(p *corev1.Pod) {
				setEnv(p, envDNSCapture, "")
				p.Spec.Containers[1].Env[0].ValueFrom = &corev1.EnvVarSource{}
			},
			[]string{"environment of container istio-proxy: ISTIO_META_DNS_CAPTURE counts as false: the agent sees only values that are in the pod's spec"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			p := plainPod()
			c.in(p)
			in, err := Of(p, nil, Config{Select: SelectAnnotation, Defaults: StandardDefaults()})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, Warnings(p, nil, in)); d != "" {
				t.Error(d)
			}
		})
	}
}

// With one of our inbound keys excluded ports count beside a list, also if the namespace has the key.
func TestWarnings_namespaceExcludesBesideAList_none(t *testing.T) {
	for key, value := range map[string]string{KeyIncludeInboundPorts: "80-90", KeyExcludeInboundPorts: "85"} {
		p, ns := plainPod(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{key: value}}}
		p.Annotations[keyIncludeInbound], p.Annotations[keyExcludeInbound] = "80,81", "81"
		in, err := Of(p, ns, Config{Select: SelectAnnotation, Defaults: StandardDefaults()})
		if err != nil {
			t.Fatal(err)
		}
		if got := Warnings(p, ns, in); len(got) > 0 {
			t.Errorf("%s: %q", key, got)
		}
	}
}

func TestWarnings_wrongValue_isNotCalledUnused(t *testing.T) {
	p := plainPod()
	p.Annotations[keyExcludeInbound] = "http"
	in, err := Of(p, nil, Config{Select: SelectAnnotation, Defaults: StandardDefaults()})
	if got := Warnings(p, nil, in); err == nil || len(got) > 0 {
		t.Errorf("error %v, warnings %q", err, got)
	}
}
