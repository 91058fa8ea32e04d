package admissiontest

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// checksIstio makes profiles with Istio's own proxy. What the agent computes cannot be stated.
func checksIstio(t *testing.T, profiles dynamic.ResourceInterface, kind schema.GroupVersionKind) {
	t.Helper()
	const computed, handovers, asks = "are left out: the agent computes", "istio needs mode perPod, handover none or reuse-port", "the agent asks Istio's own status port"
	for name, c := range map[string]struct {
		spec    string
		refused bool
		want    string
	}{
		"the defaults":                 {"istio: {}", false, "namespace: istio-system"},
		"a revision, side by side":     {"istio: {revision: 1-31, namespace: mesh}, handover: reuse-port", false, "revision: 1-31"},
		"times of readiness":           {"istio: {}, readiness: {startSeconds: 60}", false, "startSeconds: 60"},
		"more environment":             {"istio: {}, env: [{name: A, value: b}]", false, "name: A"},
		"a command":                    {"istio: {}, command: [pilot-agent]", true, computed},
		"arguments":                    {"istio: {}, args: [proxy]", true, computed},
		"a file":                       {"istio: {}, files: [{name: a, template: b}]", true, computed},
		"a secret":                     {"istio: {}, secrets: [{name: a, secret: {name: b}}]", true, computed},
		"a question whether it lives":  {"istio: {}, liveness: {tcpPort: 15020}", true, computed},
		"a question whether it serves": {"istio: {}, readiness: {tcpPort: 15020}", true, asks},
		"a signal":                     {"istio: {}, handover: reuse-port, stopSignal: TERM", true, "with istio it is TERM"},
		"Envoy's own handover":         {"istio: {}, handover: envoy-hot-restart", true, handovers},
		"TPROXY":                       {"istio: {}, network: {transparent: true}", true, handovers},
		"a namespace that is a path":   {"istio: {namespace: ../a}", true, "spec.istio.namespace"},
		"a revision in upper case":     {"istio: {revision: A}", true, "spec.istio.revision"},
		"no readiness without istio":   {"command: [a]", true, "readiness has exactly one of"},
	} {
		t.Run(name, func(t *testing.T) {
			refused, text := createSpec(t, profiles, kind, "{image: a/b, "+c.spec+"}")
			if refused != c.refused || !strings.Contains(text, c.want) {
				t.Errorf("refused: %t, want %t and %q in\n%s", refused, c.refused, c.want, text)
			}
		})
	}
}
