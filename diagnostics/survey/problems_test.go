package survey

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/test/standins/apistandin"
)

// Whoever looks for problems sees no pod that has what it asks for, or that its owner wants to be left alone.
func TestReport_problems_areWhatNeedsSomebody(t *testing.T) {
	mistyped := func(p *corev1.Pod) { p.Annotations["traffic.sidecar.istio.io/excludeInboundPort"] = "80" }
	programmed, skipped := reports("initialized", "Initialized", "True"), reports("", "NotRequired", "True")
	want := map[string]bool{}
	s := &apistandin.Server{Nodes: []corev1.Node{newNode("a"), newNode("b"), newNode("c")}, Namespaces: []corev1.Namespace{newNamespace("n", "")}}
	s.Pods = []corev1.Pod{newAgent("a", says(fine())), newAgent("c", func(p *corev1.Pod) { p.Annotations[agentstatus.Annotation] = "{" })}
	for name, c := range map[string]struct {
		node   string
		change []func(*corev1.Pod)
		want   bool
	}{
		"fine":                       {"a", []func(*corev1.Pod){programmed}, false},
		"opted-out":                  {"a", []func(*corev1.Pod){reports("removed", "Removed", "True")}, false},
		"of-istio":                   {"a", []func(*corev1.Pod){asks, skipped, func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "istio-init"}} }}, false},
		"asks-for-nothing":           {"a", []func(*corev1.Pod){skipped}, false},
		"starts":                     {"a", []func(*corev1.Pod){asks, phase(corev1.PodPending)}, false},
		"failed":                     {"a", []func(*corev1.Pod){reports("failed", "RedirectFailed", "False")}, true},
		"contended":                  {"a", []func(*corev1.Pod){reports("failed", "Contended", "False")}, true},
		"preempted":                  {"a", []func(*corev1.Pod){reports("failed", "Preempted", "False")}, true},
		"unreported":                 {"a", []func(*corev1.Pod){asks}, true},
		"on-a-node-without-an-agent": {"b", []func(*corev1.Pod){asks}, true},
		"whose-agent-has-gone":       {"b", []func(*corev1.Pod){programmed}, true},
		"on-the-hosts-network":       {"a", []func(*corev1.Pod){asks, func(p *corev1.Pod) { p.Spec.HostNetwork = true }}, true},
		"mistyped":                   {"a", []func(*corev1.Pod){mistyped}, true},
		"mistyped-and-programmed":    {"a", []func(*corev1.Pod){mistyped, programmed}, true},
		"nobody-listens":             {"a", []func(*corev1.Pod){reports("initialized", "NoListener", "True")}, true},
		"started-before-its-rules": {"a", []func(*corev1.Pod){programmed, func(p *corev1.Pod) {
			p.Annotations[podreport.KeyDetails] = `{"late":"1.204s"}`
		}}, true},
	} {
		want[name] = c.want
		s.Pods = append(s.Pods, newPod("n", name, c.node, c.change...))
	}
	r, err := ask1(t, s, Options{})
	problems := r.Problems()
	if err != nil || len(r.Pods) != len(want) || len(r.Nodes) != 3 || len(problems.Nodes) != 2 {
		t.Errorf("%d pods, nodes %+v, %v", len(r.Pods), problems.Nodes, err)
	}
	for name, want := range want {
		if got := slices.ContainsFunc(problems.Pods, func(p Pod) bool { return p.Name == name }); got != want {
			t.Errorf("%s: a problem: %t", name, got)
		}
	}
}

// A new agent that does not start takes over from nobody.
func TestAsk_agentThatDoesNotStart_isTrouble(t *testing.T) {
	for waiting, want := range map[string]string{
		"ImagePullBackOff":  "agent a-new does not start: ImagePullBackOff",
		"ContainerCreating": "agent a-new does not start: ContainerCreating: kubectl pod-network check says why",
	} {
		stuck := newAgent("a")
		stuck.Name, stuck.Status.Conditions = "a-new", nil
		stuck.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: waiting}}}}
		r, err := ask1(t, &apistandin.Server{Pods: []corev1.Pod{stuck, newAgent("a", says(fine()))}, Nodes: []corev1.Node{newNode("a")}}, Options{})
		if err != nil || !slices.Equal(r.Nodes[0].Trouble, []string{want}) || len(r.Nodes[0].Notes) > 0 || !r.Failing() {
			t.Errorf("%s: %+v, %v", waiting, r.Nodes, err)
		}
		stuck.CreationTimestamp = metav1.Now()
		r, err = ask1(t, &apistandin.Server{Pods: []corev1.Pod{stuck, newAgent("a", says(fine()))}, Nodes: []corev1.Node{newNode("a")}}, Options{})
		if err != nil || r.Failing() != (waiting == "ImagePullBackOff") {
			t.Errorf("%s, young: %+v, %v", waiting, r.Nodes, err)
		}
	}
}
