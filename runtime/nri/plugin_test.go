package nri

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/internal/podnet"
)

// fakeHandler remembers what it was asked, and refuses while it has an error.
type fakeHandler struct {
	mu    sync.Mutex
	asked []podnet.Sandbox
	err   error
	asks  bool
	slow  bool
}

func (h *fakeHandler) Ensure(ctx context.Context, s podnet.Sandbox) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, s)
	if h.slow {
		<-ctx.Done()
		return false, ctx.Err()
	}
	return h.asks, h.err
}

func event(change func(*api.PodSandbox)) *api.PodSandbox {
	pod := &api.PodSandbox{
		Id: "sandbox-1", Uid: "uid-1", Namespace: "shop", Name: "cart", RuntimeHandler: "runc",
		Annotations: map[string]string{sourceAnnotation: sourceAPI},
		Linux: &api.LinuxPodSandbox{Namespaces: []*api.LinuxNamespace{
			{Type: "ipc", Path: "/proc/1/ns/ipc"}, {Type: "network", Path: "/var/run/netns/cni-1"},
		}},
	}
	if change != nil {
		change(pod)
	}
	return pod
}

func newTestPlugin(change func(*Config)) (*plugin, *fakeHandler) {
	h := &fakeHandler{}
	c := Config{
		Handler: h, PassNamespaces: []string{"agents", "kube-system"},
		IsHost: func(path string) bool { return path == "/var/run/netns/host" },
	}
	if change != nil {
		change(&c)
	}
	return newPlugin(c, logr.Discard()), h
}

func TestASandboxIsProgrammedOnce(t *testing.T) {
	p, h := newTestPlugin(nil)
	if err := p.RunPodSandbox(t.Context(), event(nil)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, _, err := p.CreateContainer(t.Context(), event(nil), nil); err != nil {
			t.Fatal(err)
		}
	}
	want := []podnet.Sandbox{{
		Namespace: "shop", Name: "cart", UID: "uid-1", ID: "sandbox-1", NetNS: "/var/run/netns/cni-1", RuntimeHandler: "runc",
	}}
	if d := cmp.Diff(want, h.asked); d != "" {
		t.Error(d)
	}
}

// What is remembered of sandboxes does not grow with the pods that have come and gone.
func TestRemember_podsComeAndGo_memoryIsBounded(t *testing.T) {
	p, h := newTestPlugin(nil)
	for i := range 10 * maxFinished {
		if err := create(t, p, event(func(p *api.PodSandbox) { p.Id, p.Uid = fmt.Sprint("sandbox-", i), fmt.Sprint("uid-", i) })); err != nil {
			t.Fatal(err)
		}
		if len(p.announced.finished) > maxFinished {
			t.Fatalf("%d sandboxes are remembered after %d pods", len(p.announced.finished), i+1)
		}
	}
	asked := len(h.asked)
	first := event(func(p *api.PodSandbox) { p.Id, p.Uid = "sandbox-0", "uid-0" })
	if err := errors.Join(create(t, p, first), create(t, p, first)); err != nil || len(h.asked) != asked+1 {
		t.Errorf("one that was forgotten: error %v after %d calls", err, len(h.asked)-asked)
	}
}

// With refusals on failure the runtime could end nothing while the agent hangs.
func TestSession_endOfSandboxes_isNotSubscribed(t *testing.T) {
	for _, ends := range []func(context.Context, podnet.Sandbox, Container) error{nil, func(context.Context, podnet.Sandbox, Container) error { return nil }} {
		if fails := (&Hook{config: Config{Stopped: ends}}).failurePolicy().GetFailRequest(); fails != (ends == nil) {
			t.Errorf("ends of containers are subscribed: %t, calls fail with the agent: %t", ends != nil, fails)
		}
		if (&Hook{config: Config{Stopped: ends, FailOpen: true}}).failurePolicy().GetFailRequest() {
			t.Error("calls fail with an agent that fails open")
		}
	}
	for name, s := range map[string]any{"a session": &session{}, "one that is told of ended containers": stoppedSession{}} {
		_, stop := s.(stub.StopPodInterface)
		_, remove := s.(stub.RemovePodInterface)
		if stop || remove {
			t.Errorf("%s subscribes: stop %t, remove %t", name, stop, remove)
		}
	}
}

// While the agent does not know its pods, a container of a pod that was let start before it connected comes back after a crash.
func TestCreateContainer_podsUnknown_onlyPodsThatHadContainersPass(t *testing.T) {
	p, h := newTestPlugin(nil)
	h.err = fmt.Errorf("read pods: %w", podnet.ErrPodsUnknown)
	other := event(func(p *api.PodSandbox) { p.Id, p.Uid = "sandbox-2", "uid-2" })
	if _, err := p.Synchronize(t.Context(), []*api.PodSandbox{event(nil), other}, []*api.Container{{Id: "c", PodSandboxId: "sandbox-1"}}); err != nil {
		t.Fatal(err)
	}
	if err := create(t, p, event(nil)); err != nil {
		t.Errorf("a pod that runs: %v", err)
	}
	if err := create(t, p, other); !errors.Is(err, podnet.ErrPodsUnknown) {
		t.Errorf("a pod without containers: %v", err)
	}
	h.err = errors.New("another fault")
	if err := create(t, p, event(nil)); !errors.Is(err, h.err) {
		t.Errorf("a pod that runs, once its pod is known: %v", err)
	}
	h.err = podnet.ErrPodsUnknown
	if _, err := p.Synchronize(t.Context(), []*api.PodSandbox{event(nil), other}, nil); err != nil {
		t.Fatal(err)
	}
	if err := create(t, p, event(nil)); !errors.Is(err, podnet.ErrPodsUnknown) {
		t.Errorf("a pod that has no containers at the next connection: %v", err)
	}
}

func TestASandboxIDOfAnotherPodIsHandledAgain(t *testing.T) {
	p, h := newTestPlugin(nil)
	for _, uid := range []string{"uid-1", "uid-2", "uid-2"} {
		if err := p.RunPodSandbox(t.Context(), event(func(p *api.PodSandbox) { p.Uid = uid })); err != nil {
			t.Fatal(err)
		}
	}
	if len(h.asked) != 2 || h.asked[1].UID != "uid-2" {
		t.Errorf("asked %v", h.asked)
	}
}

// An event without namespaces does not say whether the pod has a network of its own: the handler has to find out.
func TestAnEventWithoutNamespacesIsHandled(t *testing.T) {
	p, h := newTestPlugin(nil)
	if err := p.RunPodSandbox(t.Context(), event(func(p *api.PodSandbox) { p.Linux = nil })); err != nil || len(h.asked) != 1 || h.asked[0].NetNS != "" {
		t.Errorf("error %v, asked %v", err, h.asked)
	}
}

// Observe gets the outcome and the duration of every call.
func TestEveryCallIsObserved(t *testing.T) {
	var got []string
	p, h := newTestPlugin(func(c *Config) {
		c.Observe = func(call string, o Outcome, took time.Duration) {
			if took <= 0 {
				t.Errorf("%s took %s", call, took)
			}
			got = append(got, call+" "+string(o))
		}
	})
	run := func(id string) {
		t.Helper()
		pod := event(func(p *api.PodSandbox) { p.Id = id })
		if err := p.RunPodSandbox(t.Context(), pod); err != nil {
			t.Errorf("sandbox %s is refused: %v", id, err)
		}
		if err := create(t, p, pod); (err == nil) == (h.err != nil) {
			t.Errorf("sandbox %s: error %v, want %v", id, err, h.err)
		}
	}
	run("1")
	h.asks = true
	run("2")
	h.err = errors.New("no")
	run("3")
	want := []string{
		"RunPodSandbox passed", "CreateContainer passed", "RunPodSandbox programmed", "CreateContainer programmed",
		"RunPodSandbox postponed", "CreateContainer refused",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// create has the runtime create a container.
func create(t *testing.T, p *plugin, pod *api.PodSandbox) error {
	t.Helper()
	_, _, err := p.CreateContainer(t.Context(), pod, nil)
	return err
}

// A sandbox that RunPodSandbox could not program is made all the same. Its containers are refused until the handler succeeds.
func TestRunPodSandbox_handlerFails_onlyContainersAreRefused(t *testing.T) {
	p, h := newTestPlugin(nil)
	h.err = errors.New("not now")
	if err := p.RunPodSandbox(t.Context(), event(nil)); err != nil {
		t.Fatalf("the sandbox is refused: %v", err)
	}
	for range 2 {
		if err := create(t, p, event(nil)); !errors.Is(err, h.err) || !strings.Contains(err.Error(), "shop/cart") {
			t.Fatalf("error %v", err)
		}
	}
	h.err = nil
	if err := create(t, p, event(nil)); err != nil || len(h.asked) != 4 {
		t.Errorf("error %v after %d calls", err, len(h.asked))
	}
}

// A sandbox whose RunPodSandbox was missed while the agent was away is programmed before its first container.
func TestCreateContainer_runPodSandboxMissed_programsTheSandbox(t *testing.T) {
	p, h := newTestPlugin(nil)
	if err := create(t, p, event(nil)); err != nil || len(h.asked) != 1 {
		t.Errorf("error %v after %d calls", err, len(h.asked))
	}
}

func TestSandboxesThatNeedNoRulesPassWithoutTheHandler(t *testing.T) {
	cases := map[string]func(*api.PodSandbox){
		"the agent's namespace":        func(p *api.PodSandbox) { p.Namespace = "agents" },
		"an excluded namespace":        func(p *api.PodSandbox) { p.Namespace = "kube-system" },
		"the host's network":           func(p *api.PodSandbox) { p.Linux.Namespaces = p.Linux.Namespaces[:1] },
		"the host's network by a path": func(p *api.PodSandbox) { p.Linux.Namespaces[1].Path = "/var/run/netns/host" },
		"a static pod":                 func(p *api.PodSandbox) { p.Annotations[sourceAnnotation] = "file" },
		"no Kubernetes pod":            func(p *api.PodSandbox) { p.Uid = "" },
		"a pod without a name":         func(p *api.PodSandbox) { p.Name = "" },
		"a sandbox without an ID":      func(p *api.PodSandbox) { p.Id = "" },
		"an empty event":               func(p *api.PodSandbox) { *p = api.PodSandbox{} },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			p, h := newTestPlugin(nil)
			h.err = errors.New("the handler must not be called")
			if err := p.RunPodSandbox(t.Context(), event(change)); err != nil || len(h.asked) != 0 {
				t.Errorf("error %v, asked %v", err, h.asked)
			}
		})
	}
	p, h := newTestPlugin(func(c *Config) { c.StaticPods = func() bool { return true } })
	if err := p.RunPodSandbox(t.Context(), event(cases["a static pod"])); err != nil || len(h.asked) != 1 {
		t.Errorf("a static pod that the handler knows: error %v, asked %v", err, h.asked)
	}
	p, _ = newTestPlugin(nil)
	if err := p.RunPodSandbox(t.Context(), nil); err != nil {
		t.Errorf("a missing event: %v", err)
	}
}

func TestFailOpenLetsPodsThrough(t *testing.T) {
	var got Outcome
	p, h := newTestPlugin(func(c *Config) {
		c.FailOpen, c.Observe = true, func(_ string, o Outcome, _ time.Duration) { got = o }
	})
	h.err = errors.New("no")
	if err := create(t, p, event(nil)); err != nil || got != LetThrough {
		t.Errorf("error %v, outcome %s", err, got)
	}
	h.err = fmt.Errorf("find: %w", podnet.ErrNoPod)
	if err := create(t, p, event(nil)); !errors.Is(err, podnet.ErrNoPod) || got != Refused {
		t.Errorf("a deleted pod: error %v, outcome %s", err, got)
	}
	h.err = nil
	if err := create(t, p, event(nil)); err != nil || len(h.asked) != 3 {
		t.Errorf("a pod that was let through is not handled again: %v, %d calls", err, len(h.asked))
	}
}
