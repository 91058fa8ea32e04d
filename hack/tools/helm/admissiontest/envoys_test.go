package admissiontest

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// checksEnvoys makes profiles for Envoys. The arguments that the agent sets are refused, by their names.
func checksEnvoys(t *testing.T, profiles dynamic.ResourceInterface, kind schema.GroupVersionKind) {
	t.Helper()
	for name, c := range map[string]struct {
		spec    string
		refused bool
		want    string
	}{
		"one": {
			spec: "handover: envoy-hot-restart, args: [-c, /etc/sidecar/envoy.yaml, --log-level, info], hotRestart: {}", want: "onIncompatibleVersion: Keep",
		},
		"one without arguments": {
			spec: "handover: envoy-hot-restart", refused: true, want: "handover envoy-hot-restart adds arguments: set command or args",
		},
		"arguments that the agent sets": {
			spec: "handover: envoy-hot-restart, args: [-c, x, --base-id, '3']", refused: true, want: "the agent sets --base-id, --base-id-path",
		},
		"the same in the command": {
			spec:    "handover: envoy-hot-restart, command: [envoy, --restart-epoch, '0']",
			refused: true, want: "--skip-hot-restart-on-no-parent itself: take them out of command",
		},
		"the same of another proxy": {spec: "args: [--base-id, '3']", want: "--base-id"},
		"a hot restart of another proxy": {
			spec:    "handover: haproxy, args: [x], hotRestart: {onIncompatibleVersion: Replace}",
			refused: true, want: "hotRestart needs handover envoy-hot-restart",
		},
		"a way that is none": {
			spec: "handover: envoy-hot-restart, args: [x], hotRestart: {onIncompatibleVersion: Drop}", refused: true, want: `supported values: "Keep", "Replace"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			refused, text := createSpec(t, profiles, kind, "{image: a/b, readiness: {tcpPort: 80}, "+c.spec+"}")
			if refused != c.refused || !strings.Contains(text, c.want) {
				t.Errorf("refused: %t, want %t and %q in\n%s", refused, c.refused, c.want, text)
			}
		})
	}
}
