package shared

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/sidecars/rollout"
)

// fakeNode is a node with pods, an API server, and a proxy that reads its files and answers on a real socket.
type fakeNode struct {
	t    *testing.T
	root string
	stop func() // ends the agent that was started last

	mu      sync.Mutex
	pods    map[string]*fakePod // by UID
	profile fakeProfile
	held    map[string]bool // by UID
	said    map[string]sidecars.Status
	reads   int

	container string // "" while the proxy does not run
	made      int
	version   string   // what is in force; "" while it waits for its first files
	serving   []string // names of network namespaces that it listens in
	server    io.Closer
	newer     *newer // the DaemonSet's next pod
	ended     chan struct{}
	reloads   int
	waits     int
	mute      bool // it answers no questions
	checks    int
	refuses   string                 // a word that its check refuses from now on
	deaf      func(text string) bool // files that the proxy accepts and does not put into force
	broken    []string
	always    []string      // pods that it has to serve from now on
	late      time.Duration // between its signal and the new configuration
	told      time.Time     // when this agent has last told it of pods
	took      []time.Duration

	// Each is called first, if there is one, and can wait.
	checking, telling, reading, finding func(ctx context.Context) error
}

// fakePod is a pod and its sandbox.
type fakePod struct {
	sandbox     podnet.Sandbox
	chosen      string
	ending      bool
	gone        bool // of the API server
	stopped     bool
	unnamed     bool // its network namespace has no name any more
	taken       bool // another process has the ports
	annotations map[string]string
	refusal     string
}

const configFile = "proxy.cfg"

// The UIDs of the DaemonSet's pods.
const proxyPod, newerPod = "pod-1", "pod-2"

// The proxy's language: each word "refused" is refused, and each network namespace has to be there.
const configTemplate = `version {{ .Version }}
{{ range .Pods }}pod {{ .NetNS }} {{ .Namespace }}/{{ .Name }} {{ index .Annotations "note" }}
{{ end }}`

// longNotes is configTemplate with a pod's annotation long 150 times.
const longNotes = configTemplate + "{{ range .Pods }}{{ $note := index .Annotations `long` }}{{ range 150 }}# {{ $note }}\n{{ end }}{{ end }}"

func newNode(t *testing.T) *fakeNode {
	t.Helper()
	n := &fakeNode{
		t: t, root: shortDir(t), pods: map[string]*fakePod{}, held: map[string]bool{}, said: map[string]sidecars.Status{},
		deaf: func(string) bool { return false },
	}
	n.profile = fakeProfile{"edge", profile.Spec{
		NamespaceSelector: &metav1.LabelSelector{}, RunAsGroup: int64(os.Getgid()),
		Network: v1alpha1.Network{OutboundPort: 15101, InboundPort: 15106}, Files: []v1alpha1.File{{Name: configFile, Template: configTemplate}},
		Shared: &profile.Reload{Check: []string{"check"}, ReloadSignal: "USR2"},
	}}
	t.Cleanup(func() {
		n.stopProxy()
		if len(n.broken) > 0 {
			t.Errorf("what must never be: %q", n.broken)
		}
	})
	return n
}

// shortDir is a directory whose path leaves room for the name of a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "shared") //nolint:usetesting // t.TempDir has the test's name in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// agent starts a Manager. stop ends it.
func (n *fakeNode) agent(change ...func(*Manager)) *Manager {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	m := New(Config{Cluster: n, Proxies: n, Sandboxes: n, Reporter: n, Root: n.root, Node: "node-1", Hold: n.hold, Changed: n.changed})
	for _, f := range change {
		f(m)
	}
	n.change(func() { n.told = time.Time{} })
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Start(ctx) }()
	n.stop = sync.OnceFunc(func() { cancel(); <-done })
	n.t.Cleanup(n.stop)
	return m
}

// newServing returns a node with an agent and a proxy that serves these pods.
func newServing(t *testing.T, names ...string) (n *fakeNode, m *Manager, pods []podnet.Sandbox) {
	t.Helper()
	n = newNode(t)
	n.startProxy()
	m = n.agent()
	pods = n.follow(m, names...)
	n.served(m, strings.Join(names, " "))
	return n, m, pods
}

func (n *fakeNode) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// pod adds a pod with a sandbox.
func (n *fakeNode) pod(name string, change ...func(*fakePod)) podnet.Sandbox {
	p := &fakePod{chosen: "edge", sandbox: podnet.Sandbox{
		Namespace: "shop", Name: name, UID: "uid-" + name, ID: "sandbox-" + name, NetNS: "/var/run/netns/ns-" + name,
	}}
	for _, f := range change {
		f(p)
	}
	n.change(func() { n.pods[p.sandbox.UID] = p })
	return p.sandbox
}

// edit changes a pod that is there.
func (n *fakeNode) edit(s podnet.Sandbox, f func(*fakePod)) { n.change(func() { f(n.pods[s.UID]) }) }

func (n *fakeNode) Choice(_ context.Context, s podnet.Sandbox) (sidecars.Choice, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.pods[s.UID]
	if p == nil || p.gone {
		return sidecars.Choice{}, podnet.ErrNoPod
	}
	out := sidecars.Choice{Name: p.chosen, Ending: p.ending, Refusal: p.refusal, OptedOut: p.chosen == "none"}
	if out.OptedOut {
		out.Name = ""
	}
	if out.Name == n.profile.Name {
		out.Hash = n.profile.Spec.Hash()
	}
	if out.Name != n.profile.Name || out.Refusal != "" {
		return out, nil
	}
	var err error
	if out.Profile, err = profile.New(n.profile.Name, n.profile.Spec); err != nil {
		out.Refusal = err.Error()
	}
	return out, nil
}

func (n *fakeNode) CurrentPod(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	if err := n.first(ctx, &n.reading); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reads++
	p := n.pods[s.UID]
	if p == nil || p.gone {
		return nil, podnet.ErrNoPod
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, UID: types.UID(s.UID), Annotations: maps.Clone(p.annotations)},
		Status:     corev1.PodStatus{PodIP: "10.0.0.1"},
	}, nil
}

func (n *fakeNode) hold(_ string, s podnet.Sandbox) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.held[s.UID]
}

// Ready, Name and Free are what the agent asks about sandboxes.
func (n *fakeNode) Ready(_ context.Context, s podnet.Sandbox) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.pods[s.UID]
	return p != nil && p.sandbox.ID == s.ID && !p.stopped, nil
}

func (n *fakeNode) Name(_ context.Context, s podnet.Sandbox) (string, error) {
	if !n.named(filepath.Base(s.NetNS)) {
		return "", podnet.ErrGone
	}
	return filepath.Base(s.NetNS), nil
}

func (n *fakeNode) named(netns string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.isNamed(netns)
}

func (n *fakeNode) isNamed(netns string) bool {
	for _, p := range n.pods {
		if filepath.Base(p.sandbox.NetNS) == netns && !p.unnamed {
			return true
		}
	}
	return false
}

func (n *fakeNode) Free(_ context.Context, s podnet.Sandbox, ports []uint16) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pods[s.UID].taken || slices.Contains(n.serving, filepath.Base(s.NetNS)) {
		return fmt.Errorf("%w: port %d", sidecars.ErrPortTaken, ports[0])
	}
	return nil
}

// Report, Forget and Retract show what is reported.
func (n *fakeNode) Report(s podnet.Sandbox, status sidecars.Status) {
	n.change(func() { n.said[s.UID] = status })
}
func (n *fakeNode) Forget(podUID string)  { n.change(func() { delete(n.said, podUID) }) }
func (n *fakeNode) Retract(podUID string) { n.Forget(podUID) }

// serves returns the names of the pods that the proxy serves.
func (n *fakeNode) serves() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []string
	for _, name := range n.serving {
		out = append(out, strings.TrimPrefix(name, "ns-"))
	}
	return strings.Join(out, " ")
}

// unserved waits until the agent knows that nobody serves a pod.
func (n *fakeNode) unserved(m *Manager, s podnet.Sandbox) {
	n.t.Helper()
	n.eventually("nobody serves "+s.Name, func() bool { ok, known := m.Serves("edge", s); return !ok && known })
}

// eventually waits until something holds.
func (n *fakeNode) eventually(what string, holds func() bool) {
	n.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if holds() {
			return
		}
		pause(n.t.Context(), 10*time.Millisecond)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.t.Fatalf("not within a minute: %s; served %q, said %+v, sum %+v", what, n.serving, n.said, n.sum())
}

// served waits until the proxy serves exactly these pods, and the agent knows.
func (n *fakeNode) served(m *Manager, want string) {
	n.t.Helper()
	n.eventually("the proxy serves "+want, func() bool {
		if n.serves() != want {
			return false
		}
		for name := range strings.FieldsSeq(want) {
			if ok, known := m.Serves("edge", podnet.Sandbox{UID: "uid-" + name, ID: "sandbox-" + name}); !ok || !known {
				return false
			}
		}
		return true
	})
}

func (n *fakeNode) status(s podnet.Sandbox) sidecars.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.said[s.UID]
}

func (n *fakeNode) reloadCount() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reloads
}

func (n *fakeNode) readCount() int { n.mu.Lock(); defer n.mu.Unlock(); return n.reads }

func (n *fakeNode) summary() rollout.NodeCount {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sum()
}

// sum counts what is reported, as the profile's status does. n.mu is held.
func (n *fakeNode) sum() (out rollout.NodeCount) {
	hash := n.profile.Spec.Hash()
	for _, s := range n.said {
		out.Pods++
		switch {
		case s.FailedHash == hash:
			out.Failed++
		case s.Ready && s.Hash == hash:
			out.Upgraded++
		}
	}
	return out
}

// answer is the version that the proxy answers.
func (n *fakeNode) answer() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.version
}
