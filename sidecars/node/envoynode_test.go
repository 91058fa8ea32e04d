package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/test/kerneltest"
)

// envoyNode is a node with one pod, whose proxies are stand-ins for Envoy.
type envoyNode struct {
	*processes
	homes      sidecars.Homes
	pod, world *netns.NS
	sandbox    podnet.Sandbox

	profiles sync.Mutex
	profile  v1alpha1.ProxyProfile
	said     sidecars.Status
}

func newEnvoyNode(t *testing.T) *envoyNode {
	t.Helper()
	n := &envoyNode{homes: sidecars.Homes{Root: filepath.Join(t.TempDir(), "homes")}}
	if err := os.Mkdir(n.homes.Root, 0o700); err != nil {
		t.Fatal(err)
	}
	n.pod, n.world = kerneltest.NewPod(t)
	n.processes = newProcesses(t, n.pod)
	n.sandbox = podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "u1", ID: "s1", NetNS: n.pod.Path()}
	n.profile = v1alpha1.ProxyProfile{ObjectMeta: metav1.ObjectMeta{Name: "envoy"}, Spec: v1alpha1.ProxyProfileSpec{
		NamespaceSelector: &metav1.LabelSelector{}, Image: "envoy:1", Args: []string{"-c", "/etc/sidecar/envoy.json"},
		Handover: v1alpha1.HandoverEnvoy, DrainSeconds: 1, RunAsUser: 1337, RunAsGroup: 1337,
		Readiness: v1alpha1.Readiness{TCPPort: 15021, StartSeconds: 20, PeriodSeconds: 10}, Rollout: v1alpha1.Rollout{MaxParallel: 1},
		Network: v1alpha1.Network{OutboundPort: 15001, InboundPort: 15006},
		Files: []v1alpha1.File{{
			Name: "envoy.json", Syntax: "json",
			Template: `{"admin": {{.AdminSocket}}, "listen": ["127.0.0.1:15001", "0.0.0.0:15006", "127.0.0.1:15021"]}`,
		}},
	}}
	return n
}

// agent starts an agent. It ends with stop, or when the node kills it.
func (n *envoyNode) agent(t *testing.T) (m *sidecars.Manager, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	n.mu.Lock()
	n.killed, n.calls = cancel, 0
	n.mu.Unlock()
	m = &sidecars.Manager{
		Runtime: n, Images: n, Prober: n, Cluster: n, Reporter: n, Homes: n.homes, Rollout: &sidecars.Rollouts{},
		Asker: countedAsker{asker{namespaces(t), n.homes}, n},
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Start(ctx) }()
	m.Follow(n.sandbox)
	return m, func() { cancel(); <-done }
}

// countedAsker has the agent killed after answers, too: what it knows from them is lost.
type countedAsker struct {
	asker
	node *envoyNode
}

func (a countedAsker) Serves(ctx context.Context, s podnet.Sandbox, epoch uint32) error {
	if err := a.asker.Serves(ctx, s, epoch); err != nil {
		return err
	}
	a.node.mu.Lock()
	defer a.node.mu.Unlock()
	return a.node.call()
}

func (a countedAsker) Ask(ctx context.Context, s podnet.Sandbox, p *sidecars.Profile, epoch uint32, q sidecars.Question) error {
	if err := a.asker.Ask(ctx, s, p, epoch, q); err != nil {
		return err
	}
	a.node.mu.Lock()
	defer a.node.mu.Unlock()
	return a.node.call()
}

func (n *envoyNode) Ensure(context.Context, *sidecars.Profile) error { return nil }

func (n *envoyNode) Pod(context.Context, podnet.Sandbox) (*corev1.Pod, error) {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "u1"}}, nil
}

func (n *envoyNode) Choice(context.Context, podnet.Sandbox) (sidecars.Choice, error) {
	n.profiles.Lock()
	defer n.profiles.Unlock()
	p, err := sidecars.Compile(&n.profile)
	return sidecars.Choice{Name: "envoy", Profile: p}, err
}

func (n *envoyNode) Report(_ podnet.Sandbox, s sidecars.Status) {
	n.profiles.Lock()
	defer n.profiles.Unlock()
	n.said = s
}

func (n *envoyNode) Forget(string) {}

func (n *envoyNode) Retract(string) {}

func (n *envoyNode) says() sidecars.Status {
	n.profiles.Lock()
	defer n.profiles.Unlock()
	return n.said
}

// upgrade changes the profile.
func (n *envoyNode) upgrade(m *sidecars.Manager, image string) {
	n.profiles.Lock()
	n.profile.Spec.Image = image
	n.profiles.Unlock()
	m.Notify("envoy")
}

// allow changes how long a proxy may take to start. By default a busy machine has time enough.
func (n *envoyNode) allow(startSeconds int32) {
	n.profiles.Lock()
	defer n.profiles.Unlock()
	n.profile.Spec.Readiness.StartSeconds = startSeconds
}

// await waits until the ManagedProxy shows an image whose proxy is ready, and nothing else runs.
func (n *envoyNode) await(t *testing.T, image string) {
	t.Helper()
	eventually(t, "a proxy of "+image+" is ready, alone", func() bool {
		s := n.says()
		return s.Ready && strings.Split(s.Image, ",")[0] == image && slices.Equal(n.images(), []string{image})
	}, func() string { return fmt.Sprintf("%+v, and %v run", n.says(), n.images()) })
}

// line returns the place of the newest proxy that runs.
func (n *envoyNode) line() string {
	all, _ := n.List(context.Background(), "") //nolint:forbidigo // it asks nobody
	for _, c := range slices.Backward(all) {
		if c.State == sidecar.Running && c.HotRestart != nil {
			return c.HotRestart.String()
		}
	}
	return "none"
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
