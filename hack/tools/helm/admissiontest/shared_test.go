package admissiontest

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// checksShared makes profiles whose pods share a proxy. What the proxy's DaemonSet has is refused in the profile, by its name.
func checksShared(t *testing.T, profiles dynamic.ResourceInterface, kind schema.GroupVersionKind) {
	t.Helper()
	const ours = "mode shared has no image, imagePullSecrets, command"
	const files = "files: [{name: a, template: x}]"
	for name, c := range map[string]struct {
		spec    string
		refused bool
		want    string
	}{
		"one":                         {spec: "mode: shared, shared: {check: [a]}, " + files, want: "mode: shared"},
		"one without a check":         {spec: "mode: shared, shared: {}, " + files, refused: true, want: "spec.shared.check"},
		"one without its part":        {spec: "mode: shared, " + files, refused: true, want: "shared belongs to mode shared, which needs it"},
		"its part in the other mode":  {spec: "image: a/b, shared: {check: [a]}, " + files, refused: true, want: "shared belongs to mode shared"},
		"one without files":           {spec: "mode: shared, shared: {check: [a]}", refused: true, want: "mode shared needs files"},
		"another signal":              {spec: "mode: shared, shared: {check: [a], reloadSignal: KILL}, " + files, refused: true, want: `supported values: "HUP", "USR1", "USR2"`},
		"an image":                    {spec: "mode: shared, shared: {check: [a]}, image: a/b, " + files, refused: true, want: ours},
		"a handover":                  {spec: "mode: shared, shared: {check: [a]}, handover: haproxy, " + files, refused: true, want: ours},
		"resources":                   {spec: "mode: shared, shared: {check: [a]}, resources: {memoryLimit: 1Gi}, " + files, refused: true, want: ours},
		"a few nodes at once":         {spec: "mode: shared, shared: {check: [a]}, rollout: {maxNodes: 3}, " + files, refused: true, want: "mode shared has no rollout.maxNodes, rollout.partition and rollout.paused"},
		"not on all nodes":            {spec: "mode: shared, shared: {check: [a]}, rollout: {partition: 1}, " + files, refused: true, want: "mode shared has no rollout.maxNodes, rollout.partition and rollout.paused"},
		"paused":                      {spec: "mode: shared, shared: {check: [a]}, rollout: {paused: true}, " + files, refused: true, want: "mode shared has no rollout.maxNodes, rollout.partition and rollout.paused"},
		"a proxy that is transparent": {spec: "mode: shared, shared: {check: [a]}, network: {transparent: true}, " + files, refused: true, want: "mode shared has no network.transparent"},
	} {
		t.Run(name, func(t *testing.T) {
			refused, text := createSpec(t, profiles, kind, "{readiness: {socket: version.sock}, "+c.spec+"}")
			if refused != c.refused || !strings.Contains(text, c.want) {
				t.Errorf("refused: %t, want %t and %q in\n%s", refused, c.refused, c.want, text)
			}
		})
	}
	const toPerPod = `{"spec":{"mode":"perPod","image":"a/b","shared":null}}`
	_, err := profiles.Patch(t.Context(), "envoy-shared", types.MergePatchType, []byte(toPerPod), metav1.PatchOptions{})
	if err == nil || !strings.Contains(err.Error(), "mode does not change") {
		t.Errorf("another mode: %v", err)
	}
}
