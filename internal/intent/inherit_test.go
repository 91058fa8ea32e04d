package intent

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// Whatever a pod may say about its traffic, its namespace may say for it, with the same outcome.
func TestOf_annotationOfNamespace_isThePodsDefault(t *testing.T) {
	cases := valueCases()
	maps.Copy(cases, otherCases())
	maps.Copy(cases, ownKeyCases())
	tried := map[string]bool{}
	for name, c := range cases {
		for _, key := range c.keys {
			if key == KeyInitialize {
				continue
			}
			tried[key] = true
			t.Run(name+" "+key, func(t *testing.T) { compareInherited(t, key, c.value) })
		}
	}
	for _, key := range readAnnotations() {
		if ReadsOfNamespace(key) && key != KeyInitialize && key != KeySidecar && key != KeyInboundPorts && key != KeyForeignRules && key != KeyEgressNames && key != KeyHoldSeconds && !tried[key] { // the others have tests of their own
			t.Errorf("%s was not tried", key)
		}
	}
}

// compareInherited compares a pod that has an annotation with a pod whose namespace has it.
func compareInherited(t *testing.T, key, value string) {
	t.Helper()
	own, ns := asking(annotate(key, value))
	want, wantErr := Of(own, ns, config())
	pod, ns := asking(nil)
	ns.Annotations[key] = value
	got, err := Of(pod, ns, config())
	if want.Reason == ModeNone {
		want.Reason = NamespaceModeNone
	}
	if got.Spec.Hash() != want.Spec.Hash() || got.Redirect != want.Redirect || got.Reason != want.Reason {
		t.Errorf("of the namespace %+v, of the pod %+v", got, want)
	}
	if text := strings.ReplaceAll(fmt.Sprint(wantErr), key+":", "annotation "+key+" of namespace shop:"); fmt.Sprint(err) != text {
		t.Errorf("error %v, want %s", err, text)
	}
}

// The pod wins key by key: also by an empty value, and whatever the namespace's is.
func TestOf_annotationOfPod_winsOverItsNamespace(t *testing.T) {
	own := map[string]string{
		keyMode: "REDIRECT", keyIncludeCIDRs: "*", keyExcludeCIDRs: "", keyIncludeInbound: "*", keyExcludeInbound: "", keyIncludeOutbound: "", keyExcludeOutbound: "",
		keyExcludeInterfaces: "", keyReroute: "", keyKubevirt: "", KeyIPv6: "capture", KeyDNSCapture: "off", KeyInboundPorts: "all",
		KeyOutboundPort: "15001", KeyInboundPort: "15006", KeyTunnelPort: "15008",
		KeyIncludeInboundPorts: "8000-8999", KeyExcludeInboundPorts: "", KeyIncludeOutboundPorts: "", KeyExcludeOutboundPorts: "7", KeyExcludeSources: "", KeyExcludeUsers: "0-9",
	}
	for key, value := range own {
		for _, theirs := range []string{"!", "TPROXY"} {
			pod, ns := asking(annotate(key, value))
			want, err := Of(pod, ns, config())
			if err != nil {
				t.Fatal(err)
			}
			ns.Annotations[key] = theirs
			got, err := Of(pod, ns, config())
			if err != nil || got.Spec.Hash() != want.Spec.Hash() {
				t.Errorf("%s: error %v, got %+v, want %+v", key, err, got.Spec, want.Spec)
			}
		}
	}
}

// What Istio's injector and OpenShift write about one pod counts on that pod only.
func TestOf_annotationAboutOnePod_isNotInherited(t *testing.T) {
	for _, selection := range []Selection{SelectAnnotation, SelectInjected, SelectEither} {
		for key, value := range map[string]string{keyInject: "false", keyInjected: "{}", keyDeployer: "x", keyBuild: "x"} {
			for _, change := range []func(*corev1.Pod){nil, annotate(keyInjected, "{}")} {
				pod, ns := asking(change)
				cfg := config()
				cfg.Select = selection
				want, wantErr := Of(pod, ns, cfg)
				ns.Annotations[key] = value
				got, err := Of(pod, ns, cfg)
				if got.Reason != want.Reason || err != nil || wantErr != nil {
					t.Errorf("%s, %s: reason %q, error %v; without it %q, %v", selection, key, got.Reason, err, want.Reason, wantErr)
				}
			}
		}
	}
}

func TestOf_rerouteInterfaces_podsEitherKeyWins(t *testing.T) {
	for name, c := range map[string]struct {
		pod, namespace map[string]string
		want           string
	}{
		"the namespace's":                        {namespace: map[string]string{keyReroute: "net1"}, want: "net1"},
		"the namespace's, by the deprecated key": {namespace: map[string]string{keyKubevirt: "net1"}, want: "net1"},
		"both of the namespace's":                {namespace: map[string]string{keyReroute: "net1", keyKubevirt: "net2"}, want: "net1"},
		"the pod's by the deprecated key":        {pod: map[string]string{keyKubevirt: "net2"}, namespace: map[string]string{keyReroute: "net1"}, want: "net2"},
		"the pod's, which is empty":              {pod: map[string]string{keyReroute: ""}, namespace: map[string]string{keyKubevirt: "net1"}},
	} {
		pod, ns := asking(nil)
		maps.Copy(pod.Annotations, c.pod)
		maps.Copy(ns.Annotations, c.namespace)
		if got, err := Of(pod, ns, config()); err != nil || strings.Join(got.Spec.RerouteInterfaces, ",") != c.want {
			t.Errorf("%s: %v, error %v", name, got.Spec.RerouteInterfaces, err)
		}
	}
}

func TestExplain_namespaceDefault_isNamedAsTheSource(t *testing.T) {
	pod, ns := asking(annotate(keyExcludeOutbound, "15020"))
	maps.Copy(ns.Annotations, map[string]string{keyMode: "TPROXY", keyExcludeOutbound: "80", KeyDNSCapture: "all", KeyOutboundPort: "15001", KeyIPv6: "direct"})
	cfg := config()
	cfg.Defaults[settingIncludeInbound] = "80"
	setEnv(pod, envDualStack, "true")
	setEnv(pod, envDNSCapture, "false")
	got, err := Explain(pod, ns, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []Setting{
		{settingMode, "TPROXY", "annotation of the namespace: " + keyMode},
		{settingDNS, "all", "annotation of the namespace: " + KeyDNSCapture},
		{settingOutboundPort, "15001", "annotation of the namespace: " + KeyOutboundPort},
		{settingIPv6, "direct", "annotation of the namespace: " + KeyIPv6},
		{settingExcludeOutbound, "15020", "annotation of the pod: " + keyExcludeOutbound},
		{settingIncludeInbound, "80", "flag of the agent: --include-inbound-ports"},
		{settingInboundPort, "15006", "default"},
	} {
		if d := cmp.Diff(want, sourceOf(t, got, want.Name)); d != "" {
			t.Error(d)
		}
	}
}

// Rules under which istio-validation would wait for ever are refused with the place of the setting.
func TestOf_namespaceExcludesValidationPort_errorNamesTheNamespace(t *testing.T) {
	for key, value := range map[string]string{keyExcludeOutbound: "15002", keyExcludeInterfaces: "lo", KeyTunnelPort: "15002"} {
		pod, ns := asking(nil)
		ns.Annotations[key] = value
		if _, err := Of(pod, ns, config()); err == nil || !strings.Contains(err.Error(), "annotation "+key+" of namespace shop: ") || !strings.Contains(err.Error(), "istio-validation") {
			t.Errorf("%s: error %v", key, err)
		}
	}
}
