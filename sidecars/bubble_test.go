package sidecars

import (
	"context"
	"path/filepath"
	goruntime "runtime"
	"testing"
	"testing/synctest"
	"time"

	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/rollout"
)

// bubble runs f with a node and the means to start agents on it, in a time of its own.
func bubble(t *testing.T, f func(t *testing.T, n *fakeNode, agent func() (m *Manager, stop func()))) {
	t.Helper()
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		defer close(n.buried)
		f(t, n, func() (*Manager, func()) { return startAgent(t, n, root) })
		if len(n.broken) > 0 {
			t.Errorf("what must never be: %q", n.broken)
		}
	})
}

// startAgent starts a Manager, which has looked for what is left, so that a test may give it another runtime. It ends with stop, or when the
// node kills it.
func startAgent(t *testing.T, n *fakeNode, root string) (m *Manager, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	dead := false
	m = New(Config{Runtime: n, Secrets: n, Images: n, Cluster: n, ControlPlanes: n, Asker: n, Reporter: n, Routes: n, Homes: home.Homes{Root: root}, Good: &rollout.Good{Dir: filepath.Join(root, "profiles")}, Rollout: &rollout.Queue{}})
	n.change(func() { n.killed, n.calls = func() { dead = true; cancel(); home.Unlock(m.duty.lock) }, 0 }) // the kernel frees a dead agent's lock
	n.manager = m
	if n.arrange != nil {
		n.arrange(m)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Start(ctx) }()
	synctest.Wait()
	return m, func() {
		cancel()
		synctest.Wait()
		n.mu.Lock()
		killed := dead
		n.mu.Unlock()
		if !killed {
			<-done
		}
	}
}

// after lets time pass. Taking the lock tells the race detector that the reads of the test come before the writes of the agent.
func (n *fakeNode) after(d time.Duration) {
	n.change(func() {})
	<-time.After(d)
	synctest.Wait()
}

// call counts a call of the agent that changes something. A dead agent makes none. n.mu is held.
func (n *fakeNode) call(name string) error {
	n.calls++
	if n.killAfter > 0 && n.calls > n.killAfter {
		n.killed()
		n.mu.Unlock()
		defer n.mu.Lock() // for the caller's own defer
		n.die()
	}
	if edit := n.during[name]; edit != nil {
		delete(n.during, name)
		edit()
	}
	return n.failures[name]
}

// survive is where an agent is killed that has just made its last call.
func (n *fakeNode) survive() {
	n.mu.Lock()
	dead := n.killAfter > 0 && n.calls >= n.killAfter && !n.late
	if dead {
		n.killed()
	}
	n.mu.Unlock()
	if dead {
		n.die()
	}
}

func (n *fakeNode) die() {
	<-n.buried
	goruntime.Goexit()
}
