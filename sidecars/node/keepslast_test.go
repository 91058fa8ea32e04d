package node

import (
	"testing"

	"istio-pod-network-controller/internal/intent"
)

// A namespace that no longer names a profile, or names none, ends no running proxy: rules lead to it, so one that ends is followed by another, also
// by the next agent, until the pod itself has chosen none.
func TestProxies_namespaceChoosesNoMore_lastChoiceStays(t *testing.T) {
	for name, now := range map[string]map[string]string{
		"nothing": nil, "none": {intent.KeySidecar: intent.SidecarNone},
	} {
		for _, profile := range []string{"edge", "shared"} {
			t.Run(name+" after "+profile, func(t *testing.T) {
				m := newChanging(t)
				delete(m.pod.Annotations, intent.KeySidecar)
				m.ns.Annotations = map[string]string{intent.KeySidecar: profile}
				m.reread()
				m.must("it starts", profile, false)
				m.ns.Annotations = now
				m.reread()
				m.must("its namespace chooses no more", profile, false)
				m.restart()
				m.must("another agent", profile, false)
				m.optOut()
				if got := m.Managed(t.Context(), m.sandbox, "", m.pod, m.ns); got != nil {
					t.Errorf("it has chosen none, and its rules lead to %+v", got)
				}
			})
		}
	}
}
