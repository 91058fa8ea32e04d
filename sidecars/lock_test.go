package sidecars

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
)

// soon is how long an agent that waits may take until it works.
const soon = home.LockPause + 10*time.Millisecond

// onlyApplications is a runtime that can be asked for applications and for nothing else.
type onlyApplications struct {
	Runtime
	from Runtime
}

func (o onlyApplications) Applications(ctx context.Context, sandbox string) ([]sidecar.Application, error) {
	return o.from.Applications(ctx, sandbox)
}

// blind takes everything from an agent by which it could change or report something: it may not use it. The result gives it back.
func blind(m *Manager) (see func()) {
	r, i, s, a := m.Runtime, m.Images, m.Secrets, m.Asker
	m.Runtime, m.Images, m.Secrets, m.Asker = onlyApplications{from: r}, nil, nil, nil
	return func() {
		m.duty.mu.Lock() // which the agent takes, too, before it uses them
		defer m.duty.mu.Unlock()
		m.Runtime, m.Images, m.Secrets, m.Asker = r, i, s, a
	}
}

// An update of the agent runs two for a while: the new one remembers what it is told, and does nothing before the old one has ended.
func TestStart_twoAgents_secondWaitsForFirst(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		first, stopFirst := agent()
		first.Follow(sandboxOf("u1"))
		n.after(time.Second)
		second, stopSecond := agent()
		defer stopSecond()
		see := blind(second)
		for _, m := range []*Manager{first, second} {
			m.Follow(sandboxOf("u1"))
			m.Follow(sandboxOf("u2"))
			m.Follow(sandboxOf("u3"))
		}
		n.after(2 * sweepInterval)
		for _, m := range []*Manager{first, second} {
			m.Unfollow("u3")
			m.Notify("")
		}
		n.upgrade(first)
		n.after(2 * sweepInterval)
		now := map[string]string{}
		for _, id := range n.running() {
			now[n.containers[id].PodUID] += n.containers[id].Image
		}
		if want := map[string]string{"u1": "localhost/haproxy:2", "u2": "localhost/haproxy:2", "u3": "localhost/haproxy:1"}; !maps.Equal(now, want) {
			t.Errorf("there run %v, want %v: nobody ends the proxy of a pod that is gone", now, want)
		}
		if got := second.Figures(); len(got) > 0 {
			t.Errorf("the agent that waits has figures %v", got)
		}
		see()
		n.change(func() { n.said = map[string]Status{} })
		stopFirst()
		n.after(soon)
		n.mustSay(t, "u2", v1alpha1.Running, true)
		made := n.next
		second.Follow(sandboxOf("u4"))
		n.after(time.Second)
		n.mustSay(t, "u4", v1alpha1.Running, true)
		if n.next != made+1 {
			t.Errorf("%d proxies were made for one pod", n.next-made)
		}
	})
}

// An agent that is killed, even while it makes a container, keeps nobody waiting.
func TestStart_firstAgentKilled_secondWorks(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		first, _ := agent()
		killed := n.killed
		second, stop := agent()
		defer stop()
		n.change(func() { n.killed, n.killAfter = killed, 1 })
		first.Follow(sandboxOf("u1"))
		second.Follow(sandboxOf("u1"))
		synctest.Wait()
		if got := len(n.running()); got > 0 || n.next != 1 {
			t.Fatalf("%d proxies run, %d were made: the agent was to be killed before it starts one", got, n.next)
		}
		n.change(func() { n.killAfter = 0 })
		n.after(soon + time.Second)
		n.mustSay(t, "u1", v1alpha1.Running, true)
	})
}

// slowly is a runtime that takes its time to list containers and to make one.
type slowly struct {
	*fakeNode
	lists, makes time.Duration
}

func (s slowly) List(ctx context.Context, podUID string) ([]sidecar.Container, error) {
	<-time.After(s.lists)
	return s.fakeNode.List(ctx, podUID)
}

func (s slowly) Create(ctx context.Context, spec sidecar.Spec) (string, error) {
	<-time.After(s.makes)
	return s.fakeNode.Create(ctx, spec)
}

// An agent that ends while the runtime makes a container has the lock until the runtime has answered.
func TestStart_createUnderWay_lockIsKept(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		first, stopFirst := agent()
		first.Runtime = slowly{fakeNode: n, makes: 3 * time.Second}
		first.Follow(sandboxOf("u1"))
		synctest.Wait()
		second, stopSecond := agent()
		defer stopSecond()
		see := blind(second)
		second.Follow(sandboxOf("u1"))
		go stopFirst()
		n.after(2 * time.Second)
		see()
		n.after(time.Second + soon)
		if got := n.running(); !slices.Equal(got, []string{"c001"}) || n.next != 1 {
			t.Errorf("%v run, %d were made", got, n.next)
		}
		n.after(time.Second)
		n.mustSay(t, "u1", v1alpha1.Running, true)
	})
}

// The end of an application is told to both agents. The one that works tells the proxy; the other one does only if it takes over, and nobody has.
func TestContainerEnded_agentWaits_isRemembered(t *testing.T) {
	for name, c := range map[string]struct {
		both  bool
		fails string // what the runtime cannot do when the agent that waited takes over
		wait  time.Duration
		want  []string
	}{
		"the agent that works was told, too":           {both: true, want: []string{"c001 SIGUSR1", "c001 SIGKILL"}},
		"only the agent that waits was told":           {want: []string{"c001 SIGUSR1", "c001 SIGKILL"}},
		"and the runtime fails once, when it works":    {fails: "list", want: []string{"c001 SIGUSR1", "c001 SIGKILL"}},
		"it was told long ago, and the sandbox stayed": {wait: 2 * home.FinishedFor},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				s := &signalled{applications: &applications{fakeNode: n, policy: corev1.RestartPolicyNever, all: []sidecar.Application{exitedApp("app", 0, 0)}}}
				first, stopFirst := agent()
				second, stopSecond := agent()
				defer stopSecond()
				for _, m := range []*Manager{first, second} {
					m.Runtime, m.Cluster = s, s
					m.Follow(sandboxOf("u1"))
				}
				n.after(time.Second)
				see := blind(second)
				end := func(m *Manager) {
					if err := m.ContainerEnded(t.Context(), sandboxOf("u1"), exitedApp("app", 0, 0)); err != nil {
						t.Error(err)
					}
				}
				end(second)
				if c.both {
					end(first)
				}
				n.after(c.wait)
				if !c.both && len(s.signals()) > 0 {
					t.Errorf("the agent that waits has told %q", s.signals())
				}
				see()
				n.failWhile(c.fails, func() { stopFirst(); n.after(time.Second) })
				n.after(5 * time.Second)
				s.wantTold(t, first, c.want) // who works no longer tells nobody
			})
		})
	}
}

// A directory that cannot be locked keeps the agent from working on proxies, and from nothing else.
func TestStart_directoryMissing_isTriedAgain(t *testing.T) {
	root := filepath.Join(t.TempDir(), "later")
	bubble(t, func(t *testing.T, n *fakeNode, _ func() (*Manager, func())) {
		m, stop := startAgent(t, n, root)
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Minute)
		if got := n.running(); len(got) > 0 {
			t.Errorf("%v run", got)
		}
		if err := os.Mkdir(root, 0o700); err != nil {
			t.Fatal(err)
		}
		n.after(soon + time.Second)
		n.mustSay(t, "u1", v1alpha1.Running, true)
	})
}

// The runtime may start a container for an agent that has been killed meanwhile. It is removed before the next agent starts a proxy: two would take the
// same port.
func TestStart_killedAgentsContainerStartsLate_runsBesideNone(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		s := sandboxOf("u1")
		late := &fakeProxy{Container: sidecar.Container{ID: "late", Sandbox: s.ID, Labels: sidecar.Labels{PodUID: s.UID}, State: sidecar.Created}}
		n.change(func() { n.containers[late.ID] = late })
		time.AfterFunc(time.Second, func() {
			n.change(func() { late.State = sidecar.Running })
		})
		m, stop := agent()
		defer stop()
		m.Runtime = slowly{fakeNode: n, makes: 3 * time.Second}
		m.Follow(s)
		n.after(5 * time.Second)
		if got := n.running(); !slices.Equal(got, []string{"c001"}) {
			t.Errorf("then run %v", got)
		}
	})
}

// failWhile has a call of the runtime fail while something happens.
func (n *fakeNode) failWhile(call string, what func()) {
	n.change(func() { n.failures[call] = errors.New("the runtime restarts") })
	what()
	n.change(func() { delete(n.failures, call) })
}
