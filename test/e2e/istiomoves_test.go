package e2e

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
)

// A workload of an injected namespace moves out as the page says, and back, while an injected application asks it. It has the chart's profile.
func (o outside) moves(t *testing.T) {
	s := newSpace(t, asked())
	s.mustKubectl(t, "label", "namespace", s.name, "istio-injection=enabled")
	objects, err := dynamic.NewForConfig(s.rest)
	must(t, err)
	m, g := managed{s, "istio", objects}, s.newGuide(t)
	cart := m.member(t, "cart", "v1")
	*cart.Spec.TerminationGracePeriodSeconds, cart.Spec.ReadinessGates = 9, nil
	c := &cart.Spec.Containers[0]
	c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 4}}}
	c.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 10, ProbeHandler: corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: []string{"/testapp", "get", "http://127.0.0.1:9080/"}},
	}}
	s.deploy(t, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "cart"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: cart.Labels}, Template: corev1.PodTemplateSpec{ObjectMeta: cart.ObjectMeta, Spec: cart.Spec},
	}})
	shopper := m.startManaged(t, m.shopper(t, "v1", "cart"))
	asking := []*corev1.Pod{shopper}
	wantProxies := func(injected int) {
		t.Helper()
		pod := s.onlyPod(t, "cart")
		has := 0
		for _, c := range pod.Spec.InitContainers {
			if c.Name == "istio-proxy" {
				has++
			}
		}
		if has != injected {
			t.Errorf("%s has %d injected proxies, want %d", pod.Name, has, injected)
		}
		m.asks(t, patience, shopper, meshURL("cart"), func(a answer) error { return m.calledBy(a, "cart", "shopper") })
		m.awaitMore(t, asking)
	}
	wantProxies(1)
	g.after["move"], g.after["back"] = func() { wantProxies(0) }, func() { wantProxies(1) }
	g.follow(t, "istio-outside-the-pod.md")
	must(t, m.eachDials(t.Context(), asking, func(s summary) error {
		t.Logf("%d new connections, %d lost", s.OK+s.Failed, s.Failed)
		return equal(int64(s.Failed), 0)
	}))
}
