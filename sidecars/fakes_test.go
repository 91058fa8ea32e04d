package sidecars

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/profile"
)

// fakeNode is a container runtime, a registry, an API server and proxies.
type fakeNode struct {
	arrange    func(*Manager) // what the next agents have in place of the node
	mu         sync.Mutex
	containers map[string]*fakeProxy
	next       int
	calls      int
	// killAfter is the number of a call after which the agent is killed, 0 is never: it stops where it is, and no defer of it runs before the
	// test ends. late has it killed when it makes the next call, with all that it does between them.
	killAfter int
	late      bool
	killed    context.CancelFunc
	buried    chan struct{}    // closed when the test ends
	failures  map[string]error // by call
	behave    func(*fakeProxy) // how a proxy that is started behaves
	broken    []string

	profile  fakeProfile
	chosen   string                  // by all pods, but
	choices  map[string]*fakeProfile // by a pod's UID: other profiles
	during   map[string]func()       // is done once, in the middle of a call
	wish     string
	held     bool
	ending   bool
	finished bool
	asks     int // lists
	listed   int // containers in them
	gone     bool
	refusal  string // why the pod cannot have the profile's proxy
	pulling  bool
	said     map[string]Status
	stopped  map[string]bool // sandboxes that do not run
	vault    vault
	meshed   meshed
	tidied   int    // containers whose logs were looked at
	log      string // of every container
	ownUsers bool   // the pods have a user namespace
	rules    map[podnet.Key]*fakeRules
	slow     time.Duration // how long it takes to apply rules
	earlier  []profile.Spec
	manager  *Manager          // the last agent's
	later    bool              // the pods ran when they chose the profile
	apiHangs bool              // the API server does not answer
	stuck    map[string]bool   // pods whose rules stay as they are
	spaces   *corev1.Namespace // of all pods, if it says something
}

// fakeProxy is a container with a proxy. It is ready readyAfter its start; a negative time is never.
type fakeProxy struct {
	sidecar.Container
	spec       sidecar.Spec
	from       string
	readyAfter time.Duration
	exit       int32
	// drains is how long it takes to end after the signal.
	drains  time.Duration
	drained bool
	hangs   bool // it takes connections, and answers none
}

func newNode() *fakeNode {
	n := &fakeNode{buried: make(chan struct{}), containers: map[string]*fakeProxy{}, failures: map[string]error{}, said: map[string]Status{}, rules: map[podnet.Key]*fakeRules{}, chosen: "edge"}
	n.behave = func(p *fakeProxy) { p.readyAfter, p.drains = 200*time.Millisecond, time.Second }
	n.profile = fakeProfile{Name: "edge", Generation: 1, Spec: profile.Spec{
		NamespaceSelector: &metav1.LabelSelector{}, Image: "localhost/haproxy:1", Args: []string{"-f", "/etc/sidecar/haproxy.cfg"},
		Handover: profile.HandoverHAProxy, RunAsUser: int64(os.Getuid()), RunAsGroup: int64(os.Getgid()),
		Readiness: profile.Probe{TCPPort: 15021, StartSeconds: 10, PeriodSeconds: 10}, Rollout: v1alpha1.Rollout{DrainSeconds: 45, MaxParallel: 2},
		Network: v1alpha1.Network{OutboundPort: 15001, InboundPort: 15006}, RestartPolicy: "Always",
		Files: []v1alpha1.File{{Name: "haproxy.cfg", Template: "# {{ .Pod.Name }}", Syntax: "haproxy"}},
	}}
	return n
}

func (n *fakeNode) List(_ context.Context, podUID string) ([]sidecar.Container, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asks++
	if err := n.failures["list"]; err != nil {
		return nil, err
	}
	var out []sidecar.Container // of one pod's: an agent holds what it has listed
	for _, c := range n.containers {
		if podUID == "" || c.PodUID == podUID {
			out = append(out, c.Container)
		}
	}
	slices.SortFunc(out, func(a, b sidecar.Container) int { return cmp.Compare(b.ID, a.ID) }) // runtimes promise no order
	n.listed += len(out)
	return out, nil
}

// Create is two calls, as in the runtime.
func (n *fakeNode) Create(_ context.Context, s sidecar.Spec) (string, error) {
	defer n.survive()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.call("create"); err != nil {
		return "", err
	}
	if n.stopped[s.Sandbox] {
		return "", sidecar.ErrGone
	}
	for _, c := range n.containers {
		if c.PodUID == s.PodUID && c.Epoch == s.Epoch {
			return "", fmt.Errorf("the name of epoch %d is reserved", s.Epoch)
		}
	}
	n.next++
	p := &fakeProxy{spec: s, Container: sidecar.Container{
		ID: fmt.Sprintf("c%03d", n.next), Sandbox: s.Sandbox, Labels: s.Labels, Epoch: s.Epoch, Image: s.Image, Created: time.Now(),
	}}
	if i := slices.Index(s.Args, "-x"); i >= 0 {
		p.from = s.Args[i+1]
	}
	n.behave(p)
	n.containers[p.ID] = p
	if err := n.call("start"); err != nil {
		delete(n.containers, p.ID)
		return "", err
	}
	p.State = sidecar.Running
	if p.exit != 0 {
		p.State = sidecar.Exited
	}
	n.check()
	n.checkStart(p)
	return p.ID, nil
}

// check notes what must never be: two proxies that take connections although one did not take over from the other.
func (n *fakeNode) check() {
	serving := map[string]int{}
	for _, c := range n.containers {
		if c.State == sidecar.Running && !c.drained && c.from == "" {
			serving[c.Sandbox]++
		}
		if serving[c.Sandbox] > 1 && len(n.broken) < 5 {
			n.broken = append(n.broken, "two proxies run that did not take over from another in "+c.Sandbox)
		}
	}
}

func (n *fakeNode) Signal(_ context.Context, id string, signal unix.Signal) error {
	defer n.survive()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.call("signal"); err != nil {
		return err
	}
	c, ok := n.containers[id]
	if !ok || c.State != sidecar.Running {
		return sidecar.ErrGone
	}
	if signal == unix.SIGKILL {
		c.State, c.exit = sidecar.Exited, 137
		return nil
	}
	if !c.drained && c.drains >= 0 {
		time.AfterFunc(c.drains, func() { n.end(id, 0) })
	}
	c.drained = true
	n.checkEnd(c)
	return nil
}

// Wait looks every 10 ms, in the bubble's time.
func (n *fakeNode) Wait(ctx context.Context, id string) error {
	for ctx.Err() == nil {
		n.mu.Lock()
		c, ok := n.containers[id]
		runs := ok && c.State == sidecar.Running
		n.mu.Unlock()
		if !runs {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	return ctx.Err()
}

// end ends a proxy.
func (n *fakeNode) end(id string, code int32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c, ok := n.containers[id]; ok && c.State == sidecar.Running {
		c.State, c.exit = sidecar.Exited, code
	}
}

func (n *fakeNode) Stop(_ context.Context, id string, _ time.Duration) error {
	defer n.survive()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.call("stop"); err != nil {
		return err
	}
	if c, ok := n.containers[id]; ok {
		c.State = sidecar.Exited
	}
	return nil
}

func (n *fakeNode) Remove(_ context.Context, id string) error {
	defer n.survive()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.call("remove"); err != nil {
		return err
	}
	if c, ok := n.containers[id]; ok && c.State == sidecar.Running {
		n.broken = append(n.broken, "a proxy that runs was removed")
	}
	delete(n.containers, id)
	return nil
}

func (n *fakeNode) End(_ context.Context, id string) (sidecar.End, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c, ok := n.containers[id]
	if !ok {
		return sidecar.End{}, sidecar.ErrGone
	}
	return sidecar.End{ExitCode: c.exit, Reason: "Error", LogPath: n.log}, nil
}

// TidyLogs counts.
func (n *fakeNode) TidyLogs(all []sidecar.Container) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tidied += len(all)
	return nil
}

func (n *fakeNode) Ensure(context.Context, *profile.Version) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pulling {
		return ErrPulling
	}
	return n.failures["pull"]
}

// Applications says that the application runs.
func (n *fakeNode) Applications(context.Context, string) ([]sidecar.Application, error) {
	return []sidecar.Application{{ID: "app", Name: "app", State: sidecar.Running}}, nil
}

func (n *fakeNode) Ready(_ context.Context, sandbox string) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.stopped[sandbox], nil
}

// Addresses are what the API server does not have yet of a new pod.
func (n *fakeNode) Addresses(ctx context.Context, sandbox string) ([]string, error) {
	if ready, _ := n.Ready(ctx, sandbox); !ready {
		return nil, sidecar.ErrGone
	}
	return []string{"10.0.0.1", "fd00::1"}, nil
}

// firstUser is the node's id of root in a pod's user namespace.
const firstUser = 100000

func (n *fakeNode) Owner(_ context.Context, spec sidecar.Spec) (uid, gid int64, err error) {
	return firstUser + spec.UID, firstUser + spec.GID, n.failures["owner"]
}

// running returns the IDs of the proxies that run, of all pods.
func (n *fakeNode) running() (out []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, c := range n.containers {
		if c.State == sidecar.Running {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

func (n *fakeNode) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

func thePod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-1", UID: "u1"}}
}

func sandboxOf(uid string) podnet.Sandbox {
	return podnet.Sandbox{Namespace: "shop", Name: "cart-1", UID: uid, ID: "sandbox-" + uid, NetNS: "/netns/" + uid}
}
