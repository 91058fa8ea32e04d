package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"istio-pod-network-controller/runtime/cniinstall"
)

// podWithNetwork is a pod that the kubelet reports a network of.
func podWithNetwork(namespace, name string, since time.Time) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Status: corev1.PodStatus{
		Conditions: []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(since)}},
	}}
}

// callTest is a watch on pods that a test makes.
type callTest struct {
	*callWatch
	serves bool
	told   []string
}

func newCallTest(pods ...*corev1.Pod) *callTest {
	b := fake.NewClientBuilder()
	for _, p := range pods {
		b = b.WithObjects(p)
	}
	c := &callTest{serves: true}
	c.callWatch = &callWatch{
		pods: b.Build(), calls: &cniinstall.Calls{}, excluded: func(ns string) bool { return ns == "kube-system" },
		serving: func() bool { return c.serves }, tell: func(err error) { c.told = append(c.told, err.Error()) },
	}
	return c
}

// On OpenShift an agent that chained itself in /etc/cni/net.d was ready, and no pod came by the chain.
func TestAPluginThatNobodyCallsIsAFault(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	later := start.Add(callSettle + time.Second)
	host := podWithNetwork("shop", "on-host", later)
	host.Spec.HostNetwork = true
	starting := podWithNetwork("shop", "starting", later)
	starting.Status.Conditions[0].Status = corev1.ConditionFalse
	pulling := podWithNetwork("shop", "cart", later) // the kubelet reports its network when its images are there
	begun := metav1.NewTime(start.Add(-time.Minute))
	pulling.Status.StartTime = &begun
	for name, tc := range map[string]struct {
		pod   *corev1.Pod
		heard bool
		want  bool
	}{
		"a pod that the plugin did not ask about": {pod: podWithNetwork("shop", "cart", later), want: true},
		"one that it asked about":                 {pod: podWithNetwork("shop", "cart", later), heard: true},
		"one from before":                         {pod: podWithNetwork("shop", "cart", start)},
		"one while the runtime reads the list":    {pod: podWithNetwork("shop", "cart", start.Add(time.Second))},
		"one from before whose images took long":  {pod: pulling},
		"one of a clock that was wrong":           {pod: podWithNetwork("shop", "cart", later.AddDate(1, 0, 0))},
		"one of an excluded namespace":            {pod: podWithNetwork("kube-system", "cart", later)},
		"one on the node's network":               {pod: host},
		"one without a network yet":               {pod: starting},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCallTest(tc.pod)
			c.look(t.Context(), start)
			if tc.heard {
				c.calls.Heard("shop/cart", later)
			}
			c.look(t.Context(), later.Add(callInterval))
			c.look(t.Context(), later.Add(2*callInterval))
			if err := c.Check(); (err != nil) != tc.want || (len(c.told) == 1) != tc.want {
				t.Errorf("fault %v, told %q, want one: %t", err, c.told, tc.want)
			}
			if tc.want && !slices.ContainsFunc(c.told, func(s string) bool { return strings.Contains(s, "shop/cart") }) {
				t.Errorf("told %q", c.told)
			}
		})
	}
}

// During an update the plugin asks the other agent.
func TestAnAgentThatIsNotAskedDoesNotJudge(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	c := newCallTest(podWithNetwork("shop", "cart", start.Add(time.Minute)))
	c.look(t.Context(), start)
	c.serves = false
	c.look(t.Context(), start.Add(2*time.Minute))
	c.serves = true
	c.look(t.Context(), start.Add(2*time.Minute+callInterval)) // it has the socket back, and counts from here
	c.look(t.Context(), start.Add(time.Hour))
	if err := c.Check(); err != nil || len(c.told) > 0 {
		t.Errorf("%v, told %q", err, c.told)
	}
}
