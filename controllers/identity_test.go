package controllers

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
)

// Rules that take the proxy for an application, or an application for the proxy, are none to rely on, although they are as they were.
func TestEnsure_proxyIsUnknown_podIsNotReady(t *testing.T) {
	b := newBench(t)
	b.pods.pod.Spec.Containers = append(b.pods.pod.Spec.Containers, corev1.Container{Name: "app"})
	b.ensure(t, Changed)
	runs := func(container string, id int64) {
		user := &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: id, GID: id}}
		b.pods.pod.Status.ContainerStatuses = append(b.pods.pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: container, User: user})
	}
	runs("app", 1337) // by its image
	result, err := b.Ensure(t.Context(), Watch, b.sandbox)
	if got := b.lastReport(t); result != Failed || !RulesKept(err) || got.Reason != podreport.ReasonProxyUnknown || got.condition() != "False" || b.backend.held["/netns/1"] == "" {
		t.Errorf("result %q, error %v, report %+v", result, err, got)
	}
	runs(intent.ProxyContainer, 101)
	b.ensure(t, Changed) // the rules know the proxy by what the runtime says
	if got := b.lastReport(t); got.condition() != "True" || !strings.Contains(b.backend.held["/netns/1"], "101") {
		t.Errorf("report %+v, rules %s", got, b.backend.held["/netns/1"])
	}
}
