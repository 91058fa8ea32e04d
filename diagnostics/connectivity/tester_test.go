package connectivity

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"istio-pod-network-controller/internal/intent"
)

// kubelet stands in for a cluster's nodes: pods that are created run, clients end with proofs, and an agent reports.
type kubelet struct {
	proofs  []Proof
	silent  bool // no agent reports
	waiting string
}

func (k kubelet) run(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		pod.Spec.NodeName = "chosen"
		if a := pod.Spec.Affinity; a != nil {
			pod.Spec.NodeName = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
		}
	}
	if k.waiting != "" {
		pod.Status.Phase = corev1.PodPending
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: containerProxy, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: k.waiting}},
		}}
		return
	}
	pod.Status.Phase, pod.Status.PodIPs = corev1.PodRunning, []corev1.PodIP{{IP: "192.0.2.2"}, {IP: "2001:db8::2"}}
	if !k.silent {
		pod.Annotations["pod-network-controller.istio.io/status"] = "initialized"
	}
	if strings.HasPrefix(pod.Name, "client-") {
		message, _ := json.Marshal(k.proofs) // cannot fail
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: containerApplication, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: string(message)}},
		}}
	}
}

// cluster is a fake API server with a kubelet.
func (k kubelet) cluster(objects ...runtime.Object) *fake.Clientset {
	c := fake.NewClientset(objects...)
	// A namespace takes its pods with it.
	c.PrependReactor("delete", "namespaces", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if gone, ok := action.(clienttesting.DeleteAction); ok {
			pods := corev1.SchemeGroupVersion.WithResource("pods")
			list, _ := c.Tracker().List(pods, corev1.SchemeGroupVersion.WithKind("Pod"), gone.GetName())
			if all, ok := list.(*corev1.PodList); ok {
				for i := range all.Items {
					_ = c.Tracker().Delete(pods, gone.GetName(), all.Items[i].Name)
				}
			}
		}
		return false, nil, nil
	})
	c.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if create, ok := action.(clienttesting.CreateAction); ok {
			if pod, ok := create.GetObject().(*corev1.Pod); ok {
				k.run(pod)
			}
		}
		return false, nil, nil
	})
	return c
}

func node(name string, change func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	if change != nil {
		change(n)
	}
	return n
}

func good() []Proof {
	return []Proof{{Kind: KindOutbound, Family: "IPv4"}, {Kind: KindInbound, Family: "IPv6"}}
}

func newTester(c *fake.Clientset) *Tester {
	return &Tester{
		Client: c, Nodes: Nodes{All: true}, Image: "registry/image:1", Select: intent.SelectAnnotation, Wait: time.Millisecond, Interval: time.Millisecond, Say: func(string) {},
	}
}

// left are the names of what is still there.
func left(t *testing.T, c *fake.Clientset) (names []string) {
	t.Helper()
	namespaces, err := c.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range namespaces.Items {
		names = append(names, namespaces.Items[i].Name)
	}
	pods, err := c.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		names = append(names, pods.Items[i].Name)
	}
	return names
}

func TestRun_nodes_areProvenAndNothingIsLeft(t *testing.T) {
	c := kubelet{proofs: good()}.cluster(node("b", nil), node("a", nil))
	lines, err := newTester(c).Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, l := range lines {
		have = append(have, strings.TrimSpace(l.Node+" "+string(l.Kind)+" "+l.Family))
	}
	want := []string{"a pods", "a outbound IPv4", "a inbound IPv6", "a report", "b pods", "b outbound IPv4", "b inbound IPv6", "b report"}
	if diff := cmp.Diff(want, have); diff != "" || !Proven(lines) {
		t.Errorf("%s\n%+v", diff, lines)
	}
	if names := left(t, c); len(names) > 0 {
		t.Errorf("left: %v", names)
	}
}

func TestRun_failures_haveReasonsAndNothingIsLeft(t *testing.T) {
	for name, tc := range map[string]struct {
		kubelet kubelet
		want    string
	}{
		"a proof fails":             {kubelet{proofs: []Proof{{Kind: KindInbound, Family: "IPv6", Why: "lost"}}}, "lost"},
		"no agent reports":          {kubelet{proofs: good(), silent: true}, "no agent has written a status on pod server-"},
		"the client says nothing":   {kubelet{}, "ended without proofs"},
		"the pods wait for a image": {kubelet{waiting: "ImagePullBackOff"}, "container istio-proxy waits: ImagePullBackOff"},
	} {
		t.Run(name, func(t *testing.T) {
			c := tc.kubelet.cluster(node("a", nil))
			tester := newTester(c)
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			lines, _ := tester.Run(ctx)
			if Proven(lines) || !slices.ContainsFunc(lines, func(l Line) bool { return strings.Contains(l.Why, tc.want) && l.Do != "" }) {
				t.Errorf("%+v", lines)
			}
			if names := left(t, c); len(names) > 0 {
				t.Errorf("left: %v", names)
			}
		})
	}
}

func TestRun_interrupted_leavesNothing(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	c := kubelet{waiting: "ContainerCreating"}.cluster(node("a", nil))
	c.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		cancel(errors.New("interrupted"))
		return false, nil, nil
	})
	tester, said := newTester(c), ""
	tester.Say = func(sentence string) { said = sentence }
	if _, err := tester.Run(ctx); err == nil || !strings.Contains(err.Error(), "interrupted") || !strings.HasPrefix(said, "stopped: deleting") {
		t.Errorf("%v, said %q", err, said)
	}
	if names := left(t, c); len(names) > 0 {
		t.Errorf("left: %v", names)
	}
}

func TestRun_givenNamespace_stays(t *testing.T) {
	c := kubelet{proofs: good()}.cluster(node("a", nil), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "given"}})
	tester := newTester(c)
	tester.Namespace = "given"
	if lines, err := tester.Run(t.Context()); err != nil || !Proven(lines) {
		t.Errorf("%+v, %v", lines, err)
	}
	if diff := cmp.Diff([]string{"given"}, left(t, c)); diff != "" {
		t.Error(diff)
	}
}

func TestRun_keep_leavesThePods(t *testing.T) {
	c := kubelet{proofs: good()}.cluster(node("a", nil))
	tester := newTester(c)
	tester.Keep = true
	if _, err := tester.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if names := left(t, c); len(names) != 3 {
		t.Errorf("left: %v", names)
	}
}

func TestRun_withoutListNodes_testsOnePair(t *testing.T) {
	c := kubelet{proofs: good()}.cluster()
	c.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", nil)
	})
	tester := newTester(c)
	tester.Nodes = Nodes{Sample: 3}
	if lines, err := tester.Run(t.Context()); err != nil || !Proven(lines) || lines[0].Node != "chosen" {
		t.Errorf("%+v, %v", lines, err)
	}
	tester.Nodes = Nodes{All: true}
	if lines, err := tester.Run(t.Context()); !apierrors.IsForbidden(err) {
		t.Errorf("all nodes were asked for: %+v, %v", lines, err)
	}
}

func TestRun_withoutCreateNamespaces_namesTheFlag(t *testing.T) {
	c := kubelet{}.cluster(node("a", nil))
	c.PrependReactor("create", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "", nil)
	})
	if _, err := newTester(c).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "give an existing one by --namespace") {
		t.Error(err)
	}
}

func TestRun_failedDeletion_isNamed(t *testing.T) {
	c := kubelet{proofs: good()}.cluster(node("a", nil))
	c.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", nil)
	})
	tester := newTester(c)
	tester.Namespace = "given"
	lines, err := tester.Run(t.Context())
	if err == nil || !strings.HasPrefix(err.Error(), "clean up: ") || !strings.Contains(err.Error(), "kubectl -n given delete pods -l "+KeyRun+"=") || !Proven(lines) {
		t.Errorf("%v, %+v", err, lines)
	}
}

func TestRun_lateServiceAccount_isAwaited(t *testing.T) {
	c := kubelet{proofs: good()}.cluster(node("a", nil))
	refusals := 2
	c.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		if refusals--; refusals < 0 {
			return false, nil, nil
		}
		why := errors.New(`error looking up service account x/default: serviceaccount "default" not found`)
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "server", why)
	})
	if lines, err := newTester(c).Run(t.Context()); err != nil || !Proven(lines) {
		t.Errorf("%+v, %v", lines, err)
	}
}

// Whatever the agents' flags are, they select the pods, and redirect by the pods' own annotations.
func TestPodMaker_otherDefaults_stillRedirects(t *testing.T) {
	defaults := intent.StandardDefaults()
	defaults["interception-mode"], defaults["include-inbound-ports"], defaults["exclude-outbound-ip-ranges"] = "TPROXY", "", "10.0.0.0/8"
	defaults["envoy-port"], defaults["envoy-inbound-port"], defaults["ipv6"], defaults["include-outbound-ports"] = "3", "4", "direct", "77"
	for _, selection := range []intent.Selection{intent.SelectAnnotation, intent.SelectInjected, intent.SelectEither} {
		maker := podMaker{run: "run", namespace: "test", image: "image", injected: selection == intent.SelectInjected}
		for _, pod := range []*corev1.Pod{maker.server(0, ""), maker.client(0, "n", "server", []netip.Addr{netip.IPv6Loopback()}, time.Second)} {
			mine, err := intent.Of(pod, nil, intent.Config{Select: selection, Defaults: defaults})
			if err != nil || !mine.Redirect {
				t.Fatalf("%s: %+v, %v", selection, mine, err)
			}
			usual, err := intent.Of(pod, nil, intent.Config{Select: selection, Defaults: intent.StandardDefaults()})
			if diff := cmp.Diff(usual.Spec.Hash(), mine.Spec.Hash()); diff != "" || err != nil {
				t.Errorf("%s: the agent's flags show: %s", selection, diff)
			}
		}
	}
}

func TestFindAgent_agentsPod_saysImageAndSelection(t *testing.T) {
	agent := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-1", Namespace: "agents", Labels: map[string]string{"app.kubernetes.io/name": "istio-pod-network-controller"}, OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet"}}},
		Spec:       corev1.PodSpec{NodeName: "n1", HostNetwork: true, Containers: []corev1.Container{{Name: "agent", Image: "registry/agent:7", Args: []string{"run", "--select=injected"}}}},
	}
	found, err := FindAgent(t.Context(), fake.NewClientset(agent), "")
	if want := (Agent{Image: "registry/agent:7", Select: intent.SelectInjected}); found != want || err != nil {
		t.Errorf("%+v, %v", found, err)
	}
	if found, err := FindAgent(t.Context(), fake.NewClientset(), ""); err == nil {
		t.Errorf("without an agent: %+v", found)
	}
	forged := agent.DeepCopy()
	forged.Namespace, forged.Spec.Containers[0].Image = "tenant", "tenant/image"
	plain := forged.DeepCopy()
	plain.Spec.HostNetwork = false
	if found, err := FindAgent(t.Context(), fake.NewClientset(plain), ""); err == nil {
		t.Errorf("without an agent, a tenant's pod with the label counts: %+v", found)
	}
	if found, err := FindAgent(t.Context(), fake.NewClientset(agent, plain), ""); err != nil || found.Image != "registry/agent:7" {
		t.Errorf("beside a tenant's pod with the label: %+v, %v", found, err)
	}
	if found, err := FindAgent(t.Context(), fake.NewClientset(agent, forged), ""); err == nil || !strings.Contains(err.Error(), "agents, tenant") {
		t.Errorf("with a forged one: %+v, %v", found, err)
	}
	if found, err := FindAgent(t.Context(), fake.NewClientset(agent, forged), "agents"); err != nil || found.Image != "registry/agent:7" {
		t.Errorf("with a forged one elsewhere: %+v, %v", found, err)
	}
}

func TestTextHasNoControlCharacters(t *testing.T) {
	text := Text([]Line{line("n1", KindInbound, "IPv4", "a\x1b[2Jb\nc\u009b2J\u202e")})
	if strings.ContainsAny(text, "\x1b\u009b\u202e") || !strings.Contains(text, "a?[2Jb c") || !strings.Contains(text, "FAIL") || !strings.Contains(text, "1 failed") {
		t.Errorf("%q", text)
	}
}
