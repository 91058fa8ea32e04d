package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/sidecars/rollout"
	"istio-pod-network-controller/test/kerneltest"
)

// realNode is a node whose pods have real network namespaces, and whose proxies are processes in them.
type realNode struct {
	*processes
	homes     home.Homes
	sandboxes []podnet.Sandbox
	worlds    []*netns.NS

	profiles sync.Mutex
	profile  string
	spec     profile.Spec
	said     map[string]sidecars.Status // by pod UID
}

func newRealNode(t *testing.T, pods int, name string, spec profile.Spec) *realNode {
	t.Helper()
	n := &realNode{homes: home.Homes{Root: filepath.Join(t.TempDir(), "homes")}, said: map[string]sidecars.Status{}}
	if err := os.Mkdir(n.homes.Root, 0o700); err != nil {
		t.Fatal(err)
	}
	n.processes = newProcesses(t)
	for i := range pods {
		pod, world := kerneltest.NewPod(t)
		s := podnet.Sandbox{Namespace: "shop", Name: fmt.Sprint("cart-", i), UID: fmt.Sprint("u", i), ID: fmt.Sprint("s", i), NetNS: pod.Path()}
		n.sandboxes, n.worlds, n.pods[s.ID] = append(n.sandboxes, s), append(n.worlds, world), pod
	}
	n.profile, n.spec = name, spec
	return n
}

// agent starts an agent. It ends with stop, or when the node kills it.
func (n *realNode) agent(t *testing.T, change ...func(*sidecars.Manager)) (m *sidecars.Manager, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	n.mu.Lock()
	n.killed, n.calls = cancel, 0
	n.mu.Unlock()
	m = sidecars.New(sidecars.Config{
		Runtime: n, Images: n, Prober: n, Cluster: n, Reporter: n, Routes: n, Homes: n.homes, Good: &rollout.Good{}, Rollout: &rollout.Queue{}, Asker: asker{namespaces(t), n.homes},
	})
	for _, f := range change {
		f(m)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Start(ctx) }()
	for _, s := range n.sandboxes {
		m.Follow(s)
	}
	return m, func() { cancel(); <-done }
}

func (n *realNode) Ensure(_ context.Context, p *profile.Version) error {
	if p.Spec.Image == "missing" {
		return errors.New("the image cannot be pulled")
	}
	return nil
}

func (n *realNode) CurrentPod(_ context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, UID: types.UID(s.UID)}}, nil
}

func (n *realNode) Choice(context.Context, podnet.Sandbox) (sidecars.Choice, error) {
	n.profiles.Lock()
	defer n.profiles.Unlock()
	p, err := profile.New(n.profile, n.spec)
	return sidecars.Choice{Name: n.profile, Profile: p, Hash: n.spec.Hash()}, err
}

func (n *realNode) Report(s podnet.Sandbox, status sidecars.Status) {
	n.profiles.Lock()
	defer n.profiles.Unlock()
	n.said[s.UID] = status
}

func (n *realNode) Forget(string) {}

func (n *realNode) Retract(string) {}

// edit changes the profile.
func (n *realNode) edit(m *sidecars.Manager, change func(*profile.Spec)) {
	n.profiles.Lock()
	change(&n.spec)
	n.profiles.Unlock()
	m.Notify(n.profile)
}

func eventually(t *testing.T, what string, is func() bool, instead func() string) {
	t.Helper()
	const patience = 2 * time.Minute
	deadline, tick := time.After(patience), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("want: %s; instead: %s", what, instead())
		}
	}
}

// Lead says that the rules lead where they should: there are none.
func (*realNode) Lead(podnet.Sandbox, intent.ManagedProxy, bool) (applied bool) { return true }
