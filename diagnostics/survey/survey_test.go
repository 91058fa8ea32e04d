package survey

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/test/standins/apistandin"
)

func TestAsk_pod_hasItsState(t *testing.T) {
	young := func(pod *corev1.Pod) { *pod.Status.StartTime = metav1.Now() }
	for name, c := range map[string]struct {
		pod       corev1.Pod
		want      State // empty: not shown
		wantWords string
	}{
		"programmed":                   {newPod("n", "p", "a", reports("initialized", "Initialized", "True")), Programmed, ""},
		"programmed, proxy silent":     {newPod("n", "p", "a", reports("initialized", "ProxyNotReady", "False")), ProxyNotReady, "because"},
		"programmed, its proxy starts": {newPod("n", "p", "a", young, reports("initialized", "ProxyNotReady", "False")), Waiting, "because"},
		"nobody listens":               {newPod("n", "p", "a", reports("initialized", "NoListener", "True"), saysOfItself("traffic is redirected; nobody listens on 15006: connections are refused")), NoListener, "traffic is redirected; nobody listens on 15006: connections are refused"},
		"started before its rules": {newPod("n", "p", "a", reports("initialized", "Initialized", "True"), func(p *corev1.Pod) {
			p.Annotations[podreport.KeyDetails] = `{"late":"1.204s"}`
		}), Programmed, "its first container had been running for 1.204s when its rules came into force"},
		"opted out":                                 {newPod("n", "p", "a", reports("removed", "Removed", "True")), Removed, "because"},
		"asked and was skipped":                     {newPod("n", "p", "a", asks, reports("", "NotRequired", "True")), Skipped, "because"},
		"another project's":                         {newPod("n", "p", "a", reports("", "ProgrammedByOthers", "True")), Others, "because"},
		"failed":                                    {newPod("n", "p", "a", reports("failed", "RedirectFailed", "False")), Failed, "because"},
		"wrong annotation":                          {newPod("n", "p", "a", reports("failed", "InvalidAnnotation", "False")), Failed, "because"},
		"refused proxy":                             {newPod("n", "p", "a", reports("failed", "ProxyRefused", "False")), Failed, "because"},
		"contended":                                 {newPod("n", "p", "a", reports("failed", "Contended", "False")), Contended, "because"},
		"preempted":                                 {newPod("n", "p", "a", reports("failed", "Preempted", "False")), Preempted, "because"},
		"new sandbox":                               {newPod("n", "p", "a", reports("initialized", "SandboxNotReady", "False")), Waiting, "because"},
		"a later release's reason, well":            {newPod("n", "p", "a", reports("initialized", "Later", "True")), Programmed, "Later: because"},
		"a later release's reason, not well":        {newPod("n", "p", "a", reports("failed", "Later", "False")), Failed, "because"},
		"programmed, its agent is gone":             {newPod("n", "p", "b", reports("initialized", "Initialized", "True")), Programmed, "nobody repairs"},
		"asks, no report":                           {newPod("n", "p", "a", asks), Unreported, "says nothing"},
		"asks, just started":                        {newPod("n", "p", "a", asks, young), Waiting, "just"},
		"asks, starts":                              {newPod("n", "p", "a", asks, phase(corev1.PodPending)), Waiting, "have not started"},
		"asks, not scheduled":                       {newPod("n", "p", "", asks, phase(corev1.PodPending)), Waiting, "not scheduled"},
		"asks, no agent":                            {newPod("n", "p", "b", asks), NoAgent, "no agent"},
		"asks, starts, no agent":                    {newPod("n", "p", "b", asks, phase(corev1.PodPending)), NoAgent, "no agent"},
		"asks on the host's network, no agent":      {newPod("n", "p", "b", asks, func(p *corev1.Pod) { p.Spec.HostNetwork = true }), Skipped, "hostNetwork"},
		"asks by a mistyped value, no agent":        {newPod("n", "p", "b", func(p *corev1.Pod) { p.Annotations[intent.KeyInitialize] = "yes" }), NoAgent, "no agent"},
		"opted out, its agent is gone":              {newPod("n", "p", "b", reports("removed", "Removed", "True")), Removed, "because"},
		"its namespace chooses a profile, no agent": {newPod("managed", "p", "b"), NoAgent, "no agent"},
		"a profile that no agent follows":           {newPod("managed", "p", "a"), Unreported, "ProxyProfile edge, and the agent of node a runs no proxies: switch proxies.enabled on"},
		"a profile, and an agent with proxies":      {newPod("managed", "p", "c"), Unreported, "see the agent's log"},
		"a profile that it refuses":                 {newPod("managed", "p", "a", func(p *corev1.Pod) { p.Annotations[intent.KeySidecar] = "none" }), "", ""},
		"a proxy of before":                         {newPod("managed", "p", "a", reports("initialized", "Initialized", "True")), Programmed, "nobody looks after the pod's"},
		"a proxy that an agent looks after":         {newPod("managed", "p", "c", reports("initialized", "Initialized", "True")), Programmed, ""},
		"its namespace asks":                        {newPod("asking", "p", "b"), NoAgent, "no agent"},
		"its namespace asks, it has no proxy":       {newPod("asking", "p", "b", func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[:1] }), "", ""},
		"asks by a mistyped key": {newPod("n", "p", "a", func(p *corev1.Pod) {
			p.Annotations["istio-pod-network-controler/initialize"] = "true"
		}), Skipped, "did you mean istio-pod-network-controller/initialize?"},
		"never asked": {newPod("n", "p", "a"), "", ""},
		"finished":    {newPod("n", "p", "a", asks, phase(corev1.PodSucceeded), reports("initialized", "Initialized", "True")), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := ask1(t, &apistandin.Server{
				Pods: []corev1.Pod{c.pod, newAgent("a", says(fine())), newAgent("c", says(fine()), runsProxies)}, Nodes: []corev1.Node{newNode("a"), newNode("b"), newNode("c")},
				Namespaces: []corev1.Namespace{newNamespace("n", ""), newNamespace("asking", "true"), choosing("managed", "edge")},
			}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			checkPod(t, r.Pods, c.want, c.wantWords)
			noAgent := c.pod.Spec.NodeName == "b" && c.want != Skipped && c.want != Removed
			if want := c.want != "" && (c.want.Failing() || noAgent); r.Failing() != want {
				t.Errorf("failing: %t, want %t", r.Failing(), want)
			}
		})
	}
}

// saysOfItself has a pod's condition say something.
func saysOfItself(message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Conditions[0].Message = message }
}

func runsProxies(agent *corev1.Pod) {
	agent.Spec.Containers[0] = corev1.Container{Name: agentstatus.Container, Args: []string{"run", "--sidecars=true"}}
}

// choosing is a namespace whose pods have chosen a profile.
func choosing(name, profile string) corev1.Namespace {
	ns := newNamespace(name, "")
	ns.Annotations = map[string]string{intent.KeySidecar: profile}
	return ns
}

// checkPod wants one pod in a state, with a message that contains words; none if state is empty.
func checkPod(t *testing.T, pods []Pod, state State, words string) {
	t.Helper()
	switch {
	case state == "" && len(pods) > 0:
		t.Errorf("shown: %+v", pods)
	case state == "":
	case len(pods) != 1 || pods[0].State != state || !strings.Contains(pods[0].Message, words) || words == "" && pods[0].Message != "":
		t.Fatalf("%+v, want %s: %s", pods, state, words)
	}
}

func TestAsk_node_hasTroubleAndNotes(t *testing.T) {
	old, down, unready := fine(), fine(), fine()
	old.Time, down.Hook[1] = time.Now().Add(-time.Hour), agentstatus.Hook{Name: "nri", Message: "not offered"}
	unready.Ready, unready.NotReady = false, []string{"runtime: away"}
	without := fine()
	without.Hook = without.Hook[:1]
	other := fine()
	other.Version = "2"
	readySince := func(ago time.Duration) corev1.Pod {
		said := unready
		said.Time = time.Now().Add(-ago - 2*time.Second)
		pod := newAgent("a", says(said))
		pod.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Now().Add(-ago))
		return pod
	}
	notReady := func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
	}
	for name, c := range map[string]struct {
		agent                  corev1.Pod
		wantTrouble, wantNotes string // parts; empty: none
	}{
		"fine":                        {newAgent("a", says(fine())), "", ""},
		"nothing new for an hour":     {newAgent("a", says(old)), "", ""},
		"its NRI is down":             {newAgent("a", says(down)), "", "nri is down: not offered; no early hook: pods start before their rules are there"},
		"no early one is switched on": {newAgent("a", says(without)), "", ""},
		"it is not ready":             {newAgent("a", says(unready)), "runtime: away", ""},
		"of another release":          {newAgent("a", says(other)), "", "another release"},
		"it says nothing":             {newAgent("a"), "", "says nothing about itself"},
		"what it says is no status":   {newAgent("a", func(p *corev1.Pod) { p.Annotations[agentstatus.Annotation] = "{" }), "cannot be read", ""},
		"it crashes":                  {func() corev1.Pod { p := newAgent("a"); notReady(&p); return p }(), "agent not ready: CrashLoopBackOff", ""},
		"it has just become ready":    {readySince(time.Second), "", ""},
		"it is ready for a minute":    {readySince(time.Minute), "runtime: away", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := ask1(t, &apistandin.Server{Pods: []corev1.Pod{c.agent}, Nodes: []corev1.Node{newNode("a")}}, Options{})
			if err != nil || len(r.Nodes) != 1 || r.Nodes[0].Agent != "mesh/agent-a" {
				t.Fatalf("%+v, %v", r, err)
			}
			trouble, notes := strings.Join(r.Nodes[0].Trouble, "; "), strings.Join(r.Nodes[0].Notes, "; ")
			if !strings.Contains(trouble, c.wantTrouble) || c.wantTrouble == "" && trouble != "" {
				t.Errorf("trouble %q, want %q", trouble, c.wantTrouble)
			}
			if !strings.Contains(notes, c.wantNotes) || c.wantNotes == "" && notes != "" {
				t.Errorf("notes %q, want %q", notes, c.wantNotes)
			}
			if r.Failing() != (c.wantTrouble != "") {
				t.Errorf("failing: %t", r.Failing())
			}
		})
	}
}

// A pod that somebody gives the agents' label is no agent, nor is one that is not on the host's network.
func TestAsk_forgedAgents_areIgnored(t *testing.T) {
	forged := newAgent("a", says(fine()))
	forged.Spec.HostNetwork = false
	loose := newAgent("a", says(fine()))
	loose.Name, loose.OwnerReferences = "loose", nil
	r, err := ask1(t, &apistandin.Server{Pods: []corev1.Pod{forged, loose}, Nodes: []corev1.Node{newNode("a")}}, Options{})
	if err != nil || r.Nodes[0].Agent != "" || len(r.Trouble) != 1 || !strings.Contains(r.Trouble[0], "the cluster has no agent") {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestAsk_agentOfAMissingNode_isNotShown(t *testing.T) {
	r, err := ask1(t, &apistandin.Server{Pods: []corev1.Pod{newAgent("a", says(fine())), newAgent("gone")}, Nodes: []corev1.Node{newNode("a")}}, Options{})
	if err != nil || len(r.Nodes) != 1 || r.Nodes[0].Name != "a" {
		t.Errorf("%+v, %v", r.Nodes, err)
	}
}

// While one agent takes over from another, the one in charge is shown.
func TestAsk_severalAgents_showsTheOneInCharge(t *testing.T) {
	ending := newAgent("a", says(fine()))
	ending.Name, ending.DeletionTimestamp, ending.Finalizers = "a-ending", new(metav1.Now()), []string{"a/b"}
	starting := newAgent("a")
	starting.Name, starting.Status.Conditions = "a-starting", nil
	r, err := ask1(t, &apistandin.Server{Pods: []corev1.Pod{ending, starting, newAgent("a", says(fine()))}, Nodes: []corev1.Node{newNode("a")}}, Options{})
	if err != nil || r.Nodes[0].Agent != "mesh/agent-a" || r.Failing() || len(r.Nodes[0].Notes) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

// A new agent that crashes beside the old one is no handover.
func TestAsk_crashingAgent_isTrouble(t *testing.T) {
	for restarts, want := range map[int32]string{
		2: "",
		3: "agent a-new crashed 3 times, the last time with exit code 1 (error: unknown flag): helm rollback",
	} {
		crashing := newAgent("a")
		crashing.Name, crashing.Status.Conditions = "a-new", nil
		crashing.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: restarts, LastTerminationState: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "error: unknown flag"},
		}}}
		r, err := ask1(t, &apistandin.Server{Pods: []corev1.Pod{crashing, newAgent("a", says(fine()))}, Nodes: []corev1.Node{newNode("a")}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		trouble, notes := strings.Join(r.Nodes[0].Trouble, "; "), strings.Join(r.Nodes[0].Notes, "; ")
		if !strings.HasPrefix(trouble, want) || r.Failing() != (want != "") || strings.Contains(notes, "takes over") != (want == "") || r.Nodes[0].Agent != "mesh/agent-a" {
			t.Errorf("%d restarts: agent %s, trouble %q, notes %q", restarts, r.Nodes[0].Agent, trouble, notes)
		}
	}
}

func TestAsk_missingOrEndingNamespace_isTold(t *testing.T) {
	ending := newNamespace("ending", "")
	ending.Status.Phase = corev1.NamespaceTerminating
	s := &apistandin.Server{Nodes: []corev1.Node{newNode("a")}, Namespaces: []corev1.Namespace{ending}, Pods: []corev1.Pod{newAgent("a", says(fine()))}}
	if _, err := ask1(t, s, Options{Namespace: "none"}); err == nil || !strings.Contains(err.Error(), `namespace "none" does not exist`) {
		t.Errorf("missing: %v", err)
	}
	if _, err := ask1(t, s, Options{Node: "none"}); err == nil || !strings.Contains(err.Error(), `node "none" does not exist`) {
		t.Errorf("missing node: %v", err)
	}
	r, err := ask1(t, s, Options{Namespace: "ending"})
	if err != nil || !r.Failing() || len(r.Trouble) != 1 || !strings.Contains(r.Trouble[0], "namespace ending is being deleted") {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestAsk_selectors_narrowTheAnswer(t *testing.T) {
	labelled := newPod("shop", "web", "b", reports("initialized", "Initialized", "True"))
	labelled.Labels = map[string]string{"app": "web"}
	s := &apistandin.Server{
		Pods:  []corev1.Pod{newPod("shop", "cart", "a", reports("initialized", "Initialized", "True")), labelled, newAgent("a", says(fine())), newAgent("b", says(fine()))},
		Nodes: []corev1.Node{newNode("a"), newNode("b"), newNode("c")},
	}
	for name, c := range map[string]struct {
		o    Options
		want []string
	}{
		"all":      {Options{}, []string{"node a", "node b", "node c", "pod cart", "pod web"}},
		"a node":   {Options{Node: "b"}, []string{"node b", "pod web"}},
		"no agent": {Options{Node: "c"}, []string{"node c"}},
		"a label":  {Options{Labels: "app=web"}, []string{"node a", "node b", "node c", "pod web"}},
	} {
		r, err := ask1(t, s, c.o)
		var got []string
		for _, n := range r.Nodes {
			got = append(got, "node "+n.Name)
		}
		for _, p := range r.Pods {
			got = append(got, "pod "+p.Name)
		}
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil || r.Failing() {
			t.Errorf("%s: %v, failing %t (-want +got):\n%s", name, err, r.Failing(), diff)
		}
	}
}

// A list that expires while it is read begins anew, and no pod is shown twice.
func TestAsk_expiredList_isReadAgain(t *testing.T) {
	s := &apistandin.Server{Nodes: []corev1.Node{newNode("a")}}
	for i := range 2*cluster.PageSize + 1 {
		s.Pods = append(s.Pods, newPod("shop", fmt.Sprintf("p%d", i), "a", reports("initialized", "Initialized", "True")))
	}
	s.Pods = append(s.Pods, newAgent("a", says(fine())))
	expired := 1
	s.Fails = func(r *http.Request) *apierrors.StatusError {
		if strings.HasSuffix(r.URL.Path, "/pods") && r.URL.Query().Get("continue") == "1000" && expired > 0 {
			expired--
			return apierrors.NewResourceExpired("too old")
		}
		return nil
	}
	r, err := ask1(t, s, Options{})
	if err != nil || len(r.Pods) != 2*cluster.PageSize+1 || expired != 0 {
		t.Errorf("%d pods, %v", len(r.Pods), err)
	}
	expired = 2
	if _, err := ask1(t, s, Options{}); !apierrors.IsResourceExpired(err) {
		t.Errorf("expired twice: %v", err)
	}
}

func TestAsk_pagesInJSON_areRead(t *testing.T) {
	s := &apistandin.Server{JSON: true, Nodes: []corev1.Node{newNode("a")}, Pods: []corev1.Pod{newAgent("a", says(fine()))}}
	for i := range cluster.PageSize {
		s.Pods = append(s.Pods, newPod("shop", fmt.Sprintf("p%d", i), "a", reports("initialized", "Initialized", "True")))
	}
	s.Pods = append(s.Pods, newPod("shop", "plain", "a")) // on the second page
	if r, err := ask1(t, s, Options{}); err != nil || len(r.Pods) != cluster.PageSize || r.Failing() {
		t.Errorf("%d pods, %v", len(r.Pods), err)
	}
}
