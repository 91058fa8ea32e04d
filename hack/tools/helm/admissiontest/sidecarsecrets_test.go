package admissiontest

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// takesSecrets makes profiles with secrets, of which the API server refuses those that an agent could not use.
func takesSecrets(t *testing.T, profiles dynamic.ResourceInterface, kind schema.GroupVersionKind) {
	t.Helper()
	for name, c := range map[string]struct {
		given   string
		refused bool
		want    string
	}{
		"secrets of each kind": {
			given: "{name: a, secret: {name: mesh.example, keys: [tls.crt]}}, " +
				"{name: b, serviceAccountToken: {audience: istio-ca}, upgradeOnRotation: true}, {name: c, workloadAPI: {hostDirectory: /run/spire/agent-sockets}}, {name: d, configMap: {name: istio-ca-root-cert}}",
			want: "expirationSeconds: 3600",
		},
		"a secret that is two things": {
			given: "{name: a, secret: {name: b}, serviceAccountToken: {audience: c}}", refused: true, want: "exactly one of secret, configMap, serviceAccountToken and workloadAPI",
		},
		"a secret that is nothing": {
			given: "{name: a}", refused: true, want: "exactly one of secret, configMap, serviceAccountToken and workloadAPI",
		},
		"two secrets of one name": {
			given: "{name: a, secret: {name: b}}, {name: a, secret: {name: c}}", refused: true, want: "Duplicate value",
		},
		"a secret's name that is a path": {
			given: "{name: ../a, secret: {name: b}}", refused: true, want: "secrets[0].name",
		},
		"a Secret's name that is a path": {
			given: "{name: a, secret: {name: ../b}}", refused: true, want: "secrets[0].secret.name",
		},
		"a ConfigMap's key that is a path": {
			given: "{name: a, configMap: {name: b, keys: [../c]}}", refused: true, want: "secrets[0].configMap.keys[0]",
		},
		"a workload API outside of /run": {
			given: "{name: a, workloadAPI: {hostDirectory: /etc/kubernetes}}", refused: true, want: "hostDirectory",
		},
		"a workload API by way of ..": {
			given: "{name: a, workloadAPI: {hostDirectory: /run/../etc}}", refused: true, want: "hostDirectory",
		},
		"a rotation of sockets": {
			given: "{name: a, upgradeOnRotation: true, workloadAPI: {hostDirectory: /run/spire}}", refused: true, want: "upgradeOnRotation is for",
		},
		"a token that ends too soon": {
			given: "{name: a, serviceAccountToken: {audience: b, expirationSeconds: 599}}", refused: true, want: "expirationSeconds",
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := "{image: a/b, readiness: {tcpPort: 80}, imagePullSecrets: [{name: registry}], secrets: [" + c.given + "]}"
			refused, text := createSpec(t, profiles, kind, spec)
			if refused != c.refused || !strings.Contains(text, c.want) {
				t.Errorf("refused: %t, want %t and %q in\n%s", refused, c.refused, c.want, text)
			}
		})
	}
}
