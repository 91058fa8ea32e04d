package profile

import (
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
)

// usual is what a profile of HAProxy says.
func usual() Spec {
	return Spec{
		NamespaceSelector: &metav1.LabelSelector{}, Image: "localhost/haproxy:1", Args: []string{"-f", "/etc/sidecar/haproxy.cfg"},
		Handover: HandoverHAProxy, RunAsUser: int64(os.Getuid()), RunAsGroup: int64(os.Getgid()),
		Readiness: Probe{TCPPort: 15021, StartSeconds: 10, PeriodSeconds: 10}, Rollout: v1alpha1.Rollout{DrainSeconds: 45, MaxParallel: 2},
		Network: v1alpha1.Network{OutboundPort: 15001, InboundPort: 15006}, RestartPolicy: "Always",
		Files: []v1alpha1.File{{Name: "haproxy.cfg", Template: "# {{ .Pod.Name }}", Syntax: syntaxHAProxy}},
	}
}

func thePod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-1", UID: "u1"}}
}
