package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
)

// fakeBackend is a kernel that remembers a hash a namespace, and fails where it is told to.
type fakeBackend struct {
	mu     sync.Mutex
	held   map[string]string
	err    error
	inside map[string]bool // namespaces that a call is at work in
	clash  bool
}

func (b *fakeBackend) Apply(_ context.Context, netns string, want iptables.Ruleset) (bool, error) {
	b.mu.Lock()
	b.clash = b.clash || b.inside[netns]
	b.inside[netns] = true
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.inside[netns] = false
		b.mu.Unlock()
	}()
	if b.err != nil {
		return false, b.err
	}
	text := want.NftText(iptables.TextOptions{})
	b.mu.Lock()
	defer b.mu.Unlock()
	changed := b.held[netns] != text
	b.held[netns] = text
	return changed, nil
}

func (b *fakeBackend) Present(_ context.Context, netns string) (bool, error) {
	return b.held[netns] != "", b.err
}

func (b *fakeBackend) Remove(_ context.Context, netns string) (bool, error) {
	was := b.held[netns] != ""
	delete(b.held, netns)
	return was, b.err
}

// fakeFinder knows one sandbox a UID, and counts questions.
type fakeFinder struct {
	sandboxes map[string]podnet.Sandbox
	asked     int
}

func (f *fakeFinder) Find(_ context.Context, pod podnet.Sandbox) (podnet.Sandbox, error) {
	f.asked++
	found, ok := f.sandboxes[pod.UID]
	if !ok {
		return pod, fmt.Errorf("uid %s: %w", pod.UID, podnet.ErrNotReady)
	}
	pod.ID, pod.NetNS, pod.RuntimeHandler = found.ID, found.NetNS, found.RuntimeHandler
	return pod, nil
}

type fakePods struct {
	pod *corev1.Pod
	ns  *corev1.Namespace
	err error
}

func (f *fakePods) Pod(_ context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	if f.pod == nil || string(f.pod.UID) != s.UID {
		return nil, errors.Join(podnet.ErrNoPod, f.err)
	}
	return f.pod, f.err
}

func (f *fakePods) Namespace(context.Context, string) (*corev1.Namespace, error) { return f.ns, nil }

type fakeReporter struct {
	mu      sync.Mutex
	reports []Report
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

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{
		backend:  &fakeBackend{held: map[string]string{}, inside: map[string]bool{}},
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
		Intent:  intent.Config{Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults(), UnsupportedHandlers: []string{"kata*"}},
		Backend: b.backend, BackendName: "fake", Finder: b.finder, Pods: b.pods, Reporter: b.reporter, Ledger: ledger, Metrics: metrics,
	}
	return b
}

func askingPod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "cart", UID: "uid-1", Annotations: map[string]string{intent.KeyInitialize: "true"},
	}}
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
