package charttest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
)

const startupTaint = "pod-network-controller.istio.io/not-ready"

// An agent that does not tolerate the taint would never come to take it away.
func TestTheAgentToleratesTheStartupTaint(t *testing.T) {
	for name, tc := range map[string]struct {
		in   string
		want []corev1.Toleration
	}{
		"every taint is tolerated anyway":      {in: "startupTaint: true", want: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}},
		"others alone":                         {in: "{startupTaint: true, tolerations: [{key: a}]}", want: []corev1.Toleration{{Key: "a"}, {Key: startupTaint, Operator: corev1.TolerationOpExists}}},
		"every taint of one effect":            {in: "{startupTaint: true, tolerations: [{operator: Exists, effect: NoSchedule}]}", want: []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}, {Key: startupTaint, Operator: corev1.TolerationOpExists}}},
		"none":                                 {in: "{startupTaint: true, tolerations: []}", want: []corev1.Toleration{{Key: startupTaint, Operator: corev1.TolerationOpExists}}},
		"another key":                          {in: "{startupTaint: true, startupTaintKey: a.b/c, tolerations: []}", want: []corev1.Toleration{{Key: "a.b/c", Operator: corev1.TolerationOpExists}}},
		"without the flag what is given stays": {in: "tolerations: [{key: a}]", want: []corev1.Toleration{{Key: "a"}}},
		"without the flag none at all":         {in: "tolerations: null"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, daemonSet(t, tc.in).Spec.Template.Spec.Tolerations, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("tolerations (-want +got):\n%s", diff)
			}
		})
	}
}
