package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

//e2e:rounds core nftables iptables
func TestExcludedGroupAndUserOfAnotherProxy(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	group, user := int64(2000), int64(1600)
	excluded := meshPod("excluded", nil)
	excluded.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsGroup: &group}
	excluded.Spec.Containers[1].Env = []corev1.EnvVar{{Name: "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", Value: "2000,2001"}}
	excluded.Spec.Containers[1].Env = append(excluded.Spec.Containers[1].Env, corev1.EnvVar{Name: "ISTIO_OUTBOUND_OWNER_GROUPS", Value: "*"})
	moved := meshPod("moved", nil)
	moved.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user, RunAsGroup: &user}
	moved.Spec.Containers[0] = bare(moved.Spec.Containers[0])
	moved.Spec.Containers[1].SecurityContext.RunAsUser, moved.Spec.Containers[1].SecurityContext.RunAsGroup = nil, nil

	for _, c := range []struct {
		pod      *corev1.Pod
		outbound bool
	}{{excluded, false}, {moved, true}} {
		t.Run(c.pod.Name, func(t *testing.T) {
			t.Parallel()
			pod := s.startMesh(t, c.pod)
			for _, f := range families() {
				wantInbound(t, pod, f, appPort, true)
				s.wantOutbound(t, pod, f.at(1, worldPort), c.outbound)
			}
		})
	}
}
