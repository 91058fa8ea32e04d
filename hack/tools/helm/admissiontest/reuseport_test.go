package admissiontest

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// checksReusePort makes profiles whose proxies listen side by side. Readiness that the old proxy could answer for the new one is refused.
func checksReusePort(t *testing.T, profiles dynamic.ResourceInterface, kind schema.GroupVersionKind) {
	t.Helper()
	const shared = "the old proxy would answer for the new one"
	for name, c := range map[string]struct {
		spec    string
		refused bool
		want    string
	}{
		"a page of the epoch":      {"handover: reuse-port, stopSignal: QUIT, readiness: {httpGet: {socket: '{epoch}'}}", false, "path: /"},
		"the epoch's socket alone": {"handover: reuse-port, stopSignal: QUIT, readiness: {socket: 'admin-{epoch}.sock'}", true, shared},
		"ports by slot":            {"handover: reuse-port, stopSignal: TERM, readiness: {tcpPort: 15020, slotPorts: true}", false, "slotPorts: true"},
		"a port of all epochs":     {"handover: reuse-port, stopSignal: QUIT, readiness: {tcpPort: 15021}", true, shared},
		"a page of such a port":    {"handover: reuse-port, stopSignal: QUIT, readiness: {httpGet: {port: 15021}}", true, shared},
		"a socket of all epochs":   {"handover: reuse-port, stopSignal: QUIT, readiness: {socket: admin.sock}", true, shared},
		"a page of such a socket":  {"handover: reuse-port, stopSignal: QUIT, readiness: {httpGet: {socket: admin.sock}}", true, shared},
		"no signal":                {"handover: reuse-port, readiness: {httpGet: {socket: '{epoch}'}}", true, "stopSignal belongs to handover reuse-port, which needs it"},
		"a signal of another":      {"stopSignal: QUIT, readiness: {tcpPort: 80}", true, "stopSignal belongs to handover reuse-port"},
		"a signal that is none":    {"handover: reuse-port, stopSignal: KILL, readiness: {httpGet: {socket: '{epoch}'}}", true, `supported values: "HUP", "INT"`},
		"life by a page of the epoch": {
			"handover: reuse-port, stopSignal: QUIT, readiness: {httpGet: {socket: '{epoch}'}}, liveness: {httpGet: {socket: '{epoch}'}}", false, "failureThreshold: 3",
		},
		"life by a port of all epochs": {
			"handover: reuse-port, stopSignal: QUIT, readiness: {httpGet: {socket: '{epoch}'}}, liveness: {tcpPort: 15021}", true, "would answer for the proxy that hangs",
		},
		"life by two questions":      {"readiness: {tcpPort: 80}, liveness: {tcpPort: 80, httpGet: {port: 80}}", true, "exactly one of httpGet and tcpPort"},
		"slots of a socket":          {"readiness: {socket: a, slotPorts: true}", true, "slotPorts needs a port with a next one"},
		"slots of the last port":     {"readiness: {tcpPort: 65535, slotPorts: true}", true, "slotPorts needs a port with a next one"},
		"a page of a port and more":  {"readiness: {httpGet: {port: 80, socket: a}}", true, "exactly one of port and socket"},
		"a page of nothing":          {"readiness: {httpGet: {path: /}}", true, "exactly one of port and socket"},
		"a socket in a directory":    {"readiness: {socket: '../{epoch}'}", true, "spec.readiness.socket"},
		"a socket by something else": {"readiness: {socket: 'a-{pod}'}", true, "spec.readiness.socket"},
	} {
		t.Run(name, func(t *testing.T) {
			refused, text := createSpec(t, profiles, kind, "{image: a/b, "+c.spec+"}")
			if refused != c.refused || !strings.Contains(text, c.want) {
				t.Errorf("refused: %t, want %t and %q in\n%s", refused, c.refused, c.want, text)
			}
		})
	}
}
