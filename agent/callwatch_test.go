package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"istio-pod-network-controller/runtime/cni/install"
)

// podWithNetwork returns a pod whose network the kubelet has reported.
func podWithNetwork(namespace, name string, since time.Time) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Status: corev1.PodStatus{
		Conditions: []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(since)}},
	}}
}

// callTest is a callWatch on the pods of a test.
type callTest struct {
	*callWatch
	isServing bool
	faults    []string
}

func newCallTest(pods ...*corev1.Pod) *callTest {
	b := fake.NewClientBuilder()
	for _, p := range pods {
		b = b.WithObjects(p)
	}
	c := &callTest{isServing: true}
	c.callWatch = &callWatch{
		pods: b.Build(), calls: &install.Calls{}, excluded: func(ns string) bool { return ns == "kube-system" },
		serving: func() bool { return c.isServing }, notify: func(err error) { c.faults = append(c.faults, err.Error()) },
	}
	return c
}

// On OpenShift an agent that had chained itself in /etc/cni/net.d was ready although the runtime never called the plugin.
func TestAPluginThatNobodyCallsIsAFault(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	later := start.Add(callGracePeriod + time.Second)
	host := podWithNetwork("shop", "on-host", later)
	host.Spec.HostNetwork = true
	starting := podWithNetwork("shop", "starting", later)
	starting.Status.Conditions[0].Status = corev1.ConditionFalse
	pulling := podWithNetwork("shop", "cart", later) // the kubelet reports its network when its images are there
	begin := metav1.NewTime(start.Add(-time.Minute))
	pulling.Status.StartTime = &begin
	for name, tc := range map[string]struct {
		pod    *corev1.Pod
		called bool
		want   bool
	}{
		"a pod without a call of the plugin":       {pod: podWithNetwork("shop", "cart", later), want: true},
		"a pod with a call":                        {pod: podWithNetwork("shop", "cart", later), called: true},
		"a pod from before the plugin was chained": {pod: podWithNetwork("shop", "cart", start)},
		"a pod within the grace period":            {pod: podWithNetwork("shop", "cart", start.Add(time.Second))},
		"a pod from before with slow image pulls":  {pod: pulling},
		"a pod with a start time in the future":    {pod: podWithNetwork("shop", "cart", later.AddDate(1, 0, 0))},
		"a pod of an excluded namespace":           {pod: podWithNetwork("kube-system", "cart", later)},
		"a pod on the host's network":              {pod: host},
		"a pod without a network yet":              {pod: starting},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCallTest(tc.pod)
			c.inspect(t.Context(), start)
			if tc.called {
				c.calls.Called("shop/cart", later)
			}
			c.inspect(t.Context(), later.Add(callCheckInterval))
			c.inspect(t.Context(), later.Add(2*callCheckInterval))
			if err := c.Check(); (err != nil) != tc.want || (len(c.faults) == 1) != tc.want {
				t.Errorf("fault %v, faults %q, want one: %t", err, c.faults, tc.want)
			}
			if tc.want && !slices.ContainsFunc(c.faults, func(s string) bool { return strings.Contains(s, "shop/cart") }) {
				t.Errorf("faults %q", c.faults)
			}
		})
	}
}

// During an update the plugin may call the other agent.
func TestNoFaultWhileAnotherAgentServesTheSocket(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	c := newCallTest(podWithNetwork("shop", "cart", start.Add(time.Minute)))
	c.inspect(t.Context(), start)
	c.isServing = false
	c.inspect(t.Context(), start.Add(2*time.Minute))
	c.isServing = true
	c.inspect(t.Context(), start.Add(2*time.Minute+callCheckInterval)) // it has the socket back, and counts from here
	c.inspect(t.Context(), start.Add(time.Hour))
	if err := c.Check(); err != nil || len(c.faults) > 0 {
		t.Errorf("%v, faults %q", err, c.faults)
	}
}
