package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
)

// fakeBackend is a kernel that remembers rules by path, and fails where a test says so. A path leads to the namespace whose
// inode its identity names; one that is not in it leads to inode 1.
type fakeBackend struct {
	mu       sync.Mutex
	held     map[string]string
	identity map[string]podnet.Identity
	err      error           // of Apply, Remove and Present
	errLook  error           // of Present and Identify
	errLate  error           // of one Apply, once it has written: the next finds no drift
	inside   map[string]bool // namespaces that a call works in
	clash    bool
	during   func() // called within Apply
	applies  int

	seen      iptables.Drift // what every Apply sees before it fails with err
	drift     iptables.Drift // what every Apply finds, in addition to a difference from held
	preempted []string
}

func (b *fakeBackend) Identify(path string) (podnet.Identity, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.where(path), b.errLook
}

func (b *fakeBackend) where(path string) podnet.Identity {
	if id, ok := b.identity[path]; ok {
		return id
	}
	return podnet.Identity{Ino: 1}
}

// enter is what every call starts with.
func (b *fakeBackend) enter(at podnet.Place) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return b.err
	}
	if at.Identity != b.where(at.Path) {
		return fmt.Errorf("%s leads elsewhere: %w", at.Path, podnet.ErrGone)
	}
	return nil
}

func (b *fakeBackend) Apply(ctx context.Context, at podnet.Place, want iptables.Ruleset) (out iptables.Outcome, err error) {
	b.mu.Lock()
	b.clash = b.clash || b.inside[at.Path]
	b.inside[at.Path] = true
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.inside[at.Path] = false
		b.mu.Unlock()
	}()
	if b.during != nil {
		b.during()
	}
	if len(b.seen) > 0 {
		iptables.SawDrift(ctx, b.seen)
	}
	if err := b.enter(at); err != nil {
		return out, err
	}
	text := want.NftText(iptables.TextOptions{})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.applies++
	out.Preempted, out.Drift = b.preempted, b.drift
	switch held := b.held[at.Path]; held {
	case text:
	case "":
		out.Drift = append(slices.Clone(b.drift), iptables.Difference{Kind: iptables.KindAbsent, Text: "- all rules"})
	default:
		out.Drift = iptables.Drift{{Kind: iptables.KindRules, Text: "+ " + held}}
	}
	b.held[at.Path] = text
	if b.errLate != nil {
		err, b.errLate, b.drift = b.errLate, nil, nil
	}
	return out, err
}

func (b *fakeBackend) Present(_ context.Context, at podnet.Place) (bool, error) {
	if err := errors.Join(b.enter(at), b.errLook); err != nil {
		return false, err
	}
	return b.rules(at.Path) != "", nil
}

func (b *fakeBackend) Remove(_ context.Context, at podnet.Place) (bool, error) {
	if err := b.enter(at); err != nil {
		return false, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.held[at.Path] != ""
	delete(b.held, at.Path)
	return was, nil
}

func (b *fakeBackend) rules(path string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held[path]
}

// fakeFinder knows one sandbox a UID, and counts questions.
type fakeFinder struct {
	sandboxes map[string]podnet.Sandbox
	asked     atomic.Int32
	err       error
	during    func()
}

func (f *fakeFinder) Find(_ context.Context, pod podnet.Sandbox) (podnet.Sandbox, error) {
	f.asked.Add(1)
	if f.during != nil {
		f.during()
	}
	if f.err != nil {
		return podnet.Sandbox{}, f.err
	}
	found, ok := f.sandboxes[pod.UID]
	if !ok {
		return pod, fmt.Errorf("uid %s: %w", pod.UID, podnet.ErrNotReady)
	}
	found.Namespace, found.Name, found.UID = pod.Namespace, pod.Name, pod.UID
	return found, nil
}

type fakePods struct {
	pod         *corev1.Pod
	ns          *corev1.Namespace
	err         error             // of Pod
	errNS       error             // of Namespace
	current     *corev1.Pod       // what the API server has, if it differs
	errNow      error             // of Current
	currentNS   *corev1.Namespace // what the API server has, if it differs
	reads       atomic.Int32
	asked       atomic.Int32 // calls of Current
	beforeReply func()       // called when a pod is read
}

func (f *fakePods) Pod(_ context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	f.reads.Add(1)
	pod := f.pod.DeepCopy()
	if f.beforeReply != nil {
		f.beforeReply()
	}
	if f.err != nil {
		return nil, f.err
	}
	if pod == nil || string(pod.UID) != s.UID {
		return nil, podnet.ErrNoPod
	}
	return pod, nil
}

func (f *fakePods) Current(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	f.asked.Add(1)
	if f.current != nil || f.errNow != nil {
		return f.current, f.errNow
	}
	return f.Pod(ctx, s)
}

func (f *fakePods) Namespace(context.Context, string) (*corev1.Namespace, error) {
	return f.ns, f.errNS
}

func (f *fakePods) CurrentNamespace(context.Context, string) (*corev1.Namespace, error) {
	if f.currentNS != nil {
		return f.currentNS, nil
	}
	return f.ns, f.errNS
}

type fakeReporter struct {
	mu        sync.Mutex
	reports   []Report
	events    []string
	forgotten []string
}

func (f *fakeReporter) Forget(uid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgotten = append(f.forgotten, uid)
}

func (f *fakeReporter) Event(_ podnet.Sandbox, reason, message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, reason+" "+message)
}

func (f *fakeReporter) Report(r Report) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reports = append(f.reports, r)
}

// bench is a Programmer on fakes, with one pod that asks for redirection and has a sandbox.
type bench struct {
	*Programmer
	backend  *fakeBackend
	finder   *fakeFinder
	pods     *fakePods
	reporter *fakeReporter
	registry *prometheus.Registry
	sandbox  podnet.Sandbox
}

func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{
		backend:  &fakeBackend{held: map[string]string{}, inside: map[string]bool{}, identity: map[string]podnet.Identity{}},
		finder:   &fakeFinder{sandboxes: map[string]podnet.Sandbox{"uid-1": {ID: "sandbox-1", NetNS: "/netns/1"}}},
		pods:     &fakePods{pod: askingPod(), ns: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}},
		reporter: &fakeReporter{}, registry: prometheus.NewRegistry(),
		sandbox: podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "uid-1"},
	}
	ledger := NewLedger()
	metrics, err := NewMetrics(b.registry, ledger)
	if err != nil {
		t.Fatal(err)
	}
	b.Programmer = &Programmer{
		Config:  intent.Config{Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults(), UnsupportedHandlers: []string{"kata*"}},
		Backend: b.backend, BackendName: "fake", Namespaces: b.backend, Finder: b.finder, Pods: b.pods, Reporter: b.reporter, Ledger: ledger, Metrics: metrics,
	}
	b.Config.Defaults["hold-seconds"] = "0" // see holding
	return b
}

func askingPod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "cart", UID: "uid-1", Annotations: map[string]string{intent.KeyInitialize: "true"},
	}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: intent.ProxyContainer}}}}
}

func (b *bench) ensure(t *testing.T, want Result) {
	t.Helper()
	if got, err := b.Ensure(t.Context(), Watch, b.sandbox); got != want || err != nil {
		t.Fatalf("result %q, error %v; want %q", got, err, want)
	}
}

func (b *bench) lastReport(t *testing.T) Report {
	t.Helper()
	if len(b.reporter.reports) == 0 {
		t.Fatal("nothing was reported")
	}
	return b.reporter.reports[len(b.reporter.reports)-1]
}
