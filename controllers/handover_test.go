package controllers

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/iptables"
)

// node is two agents, as they are on a node while one takes over from the other: what they remember is their own, and they
// share the kernel, the runtime and the API server.
type node struct {
	api    *writerBench
	kernel *fakeBackend
	agents [2]*agent
}

type agent struct {
	*bench
	writer *Writer
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{api: newWriterBench(t, askingPod())}
	for i := range n.agents {
		b := newBench(t)
		if n.kernel == nil {
			n.kernel = b.backend
		}
		pods := Reader{Cache: n.api.client, Live: n.api.client}
		writer := NewWriter(n.api.client, pods, n.api.events)
		writer.now = func() time.Time { return n.api.now }
		b.Programmer.Backend, b.Programmer.Namespaces, b.Programmer.Pods, b.Programmer.Reporter = n.kernel, n.kernel, b.pods, writer
		n.agents[i] = &agent{bench: b, writer: writer}
	}
	return n
}

// ensureAndWrite calls Ensure for the pod as it is now, and writes the report.
func (n *node) ensureAndWrite(t *testing.T, a *agent, by Hook) (Result, error) {
	t.Helper()
	pod := n.pod(t)
	a.pods.pod = pod
	result, err := a.Ensure(t.Context(), by, a.sandbox)
	a.writer.mu.Lock()
	q, ok := a.writer.next[a.sandbox.UID]
	delete(a.writer.next, a.sandbox.UID)
	a.writer.mu.Unlock()
	if ok {
		if _, err := a.writer.handle(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	return result, err
}

func (n *node) pod(t *testing.T) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := n.api.client.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "cart"}, pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// changes calls the agents in turn, by all hooks, and counts their changes of the kernel.
func (n *node) changes(t *testing.T, turns ...*agent) (count int) {
	t.Helper()
	for _, by := range []Hook{NRI, Watch, Verify} {
		for _, a := range turns {
			result, err := n.ensureAndWrite(t, a, by)
			if err != nil || result == Failed {
				t.Fatalf("%s: %s, %v", by, result, err)
			}
			if result == Changed {
				count++
			}
		}
	}
	return count
}

// Whichever agent is called first, and by which hook, the work is done once and reported once.
func TestTwoAgentsOfANodeProgramAndReportOnce(t *testing.T) {
	for name, first := range map[string]int{"the old one first": 0, "the new one first": 1} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			changes := 0
			for range 10 {
				changes += n.changes(t, n.agents[first], n.agents[1-first])
				n.api.now = n.api.now.Add(time.Minute)
			}
			pod := n.pod(t)
			if changes != 1 || n.api.patches != 1 || pod.Annotations[podreport.KeyStatus] != string(podreport.StatusInitialized) {
				t.Errorf("programmed %d times, written %d times, status %q", changes, n.api.patches, pod.Annotations[podreport.KeyStatus])
			}
		})
	}
}

func TestTwoAgentsOfANodeReportOneMistakeOnce(t *testing.T) {
	n := newNode(t)
	pod := n.pod(t)
	pod.Annotations[intent.KeyInitialize] = "yes, please"
	if err := n.api.client.Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		for _, a := range n.agents {
			if result, err := n.ensureAndWrite(t, a, Watch); result != Failed || !Permanent(err) {
				t.Fatalf("%s, %v", result, err)
			}
		}
		n.api.now = n.api.now.Add(time.Minute)
	}
	if n.api.patches != 1 || len(n.api.events.Events) != 1 {
		t.Errorf("%d patches and %d events for one mistake", n.api.patches, len(n.api.events.Events))
	}
}

// An update that changes a value has agents that want different rules. Each look writes what its agent wants and says so;
// when the old one is gone the next look, at the latest a check, leaves the new one's rules, and its word of them.
func TestAfterAnUpdateTheRulesAreTheNewAgents(t *testing.T) {
	n := newNode(t)
	older, newer := n.agents[0], n.agents[1]
	newer.Programmer.Config.Defaults["exclude-inbound-ports"] = "15020,15099"
	for _, a := range []*agent{newer, older} {
		if result, err := n.ensureAndWrite(t, a, Watch); result != Changed || err != nil {
			t.Fatalf("%s, %v", result, err)
		}
		n.api.now = n.api.now.Add(time.Second)
	}
	for i, want := range []Result{Changed, Unchanged, Unchanged} {
		n.api.now = n.api.now.Add(time.Minute)
		if result, err := n.ensureAndWrite(t, newer, Verify); result != want || err != nil {
			t.Fatalf("check %d: %s, %v", i, result, err)
		}
	}
	pod := n.pod(t)
	in, err := intent.Of(pod, nil, newer.Programmer.Config)
	if err != nil {
		t.Fatal(err)
	}
	var said podreport.Details
	if err := json.Unmarshal([]byte(pod.Annotations[podreport.KeyDetails]), &said); err != nil {
		t.Fatal(err)
	}
	want, err := newer.Programmer.compiler.compile(in.Spec, iptables.HoldNone)
	if err != nil {
		t.Fatal(err)
	}
	if said.SpecHash != want.hash || n.api.patches != 3 {
		t.Errorf("the pod says %s after %d patches, the agent that is left wants %s", said.SpecHash, n.api.patches, want.hash)
	}
}
