package check

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"istio-pod-network-controller/internal/intent"
)

// With the right to Istio's own objects only, their findings are there, whatever revisions pods name.
func TestGather_revisionsOutOfReach_istiosOwnIsTold(t *testing.T) {
	values := &corev1.ConfigMap{ObjectMeta: object("istio-system", "istio-sidecar-injector"), Data: map[string]string{"values": `{"pilot":{"cni":{"enabled":false}}}`}}
	pods := []runtime.Object{injectedPod("a", "1-29", "istio-validation"), injectedPod("b", "1-30", "istio-validation")}
	for name, c := range map[string]struct {
		objects []runtime.Object
		want    []string
	}{
		"Istio without a revision": {append(pods, values), []string{"injector: warn", "mesh-ports: ok"}},
		"revisions only":           {pods, nil},
	} {
		t.Run(name, func(t *testing.T) {
			client := served(t, fake.NewClientset(c.objects...))
			client.PrependReactor("get", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
				get, ok := action.(clienttesting.GetAction)
				if !ok || !strings.Contains(get.GetName(), "-1-") {
					return false, nil, nil
				}
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: action.GetResource().Resource}, get.GetName(), nil)
			})
			var got []string
			warned := false
			for _, r := range Run(gather(t, client, intent.Config{}), true) {
				if r.Check == "injector" || r.Check == "mesh-ports" {
					got = append(got, r.Check+": "+string(r.Level))
				}
				warned = warned || r.Check == "missing-rights" && strings.Contains(r.Do, "istio-system")
			}
			if !slices.Equal(got, c.want) || !warned {
				t.Errorf("%q, want %q; warned %v", got, c.want, warned)
			}
		})
	}
}

// Two revisions with ports of their own: each pod's rules are compared with its own revision's, as its annotations and the agents' flags have it.
func TestGather_portsOfTwoRevisions_eachPodIsJudgedByItsOwn(t *testing.T) {
	mesh := func(name, text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: object("istio-system", name), Data: map[string]string{"mesh": text}}
	}
	pod := func(name, revision, ports string) *corev1.Pod {
		p := injectedPod(name, revision)
		p.Annotations[intent.KeyInitialize] = "true"
		if ports != "" {
			p.Annotations[intent.KeyOutboundPort] = ports
		}
		return p
	}
	for name, c := range map[string]struct {
		canary string // the port that the canary's pod names
		want   string
	}{
		"both are right":            {"16001", "ok: the mesh's ports are the agents'"},
		"the canary's pod is wrong": {"", "fail: proxies listen elsewhere than the agents redirect to: meshConfig.proxyListenPort is 16001 (ConfigMap istio-1-30), the rules of shop/canary lead to 15001"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := append(installation("run"), mesh("istio", "{}"), mesh("istio-1-30", "proxyListenPort: 16001"), pod("stable", "default", ""), pod("canary", "1-30", c.canary))
			f := gather(t, served(t, fake.NewClientset(objects...)), intent.Config{Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults()})
			r := find(Run(f, false), "mesh-ports")
			if got := string(r.Level) + ": " + r.Message; got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
