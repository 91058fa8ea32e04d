package sidecars

import (
	"cmp"
	"context"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/profile"
)

// tardy is a runtime that lists a proxy as running for a while after its process has ended, as CRI-O does, and says even later how it ended.
type tardy struct {
	*fakeNode
	late         string // the proxy; "" is c001
	lists, tells time.Duration
	unsure       bool // nobody can wait for the process
	first        time.Time
	removed      time.Duration // after the end, the first one
	asked        int           // lists after the end
}

// id returns the late proxy's ID.
func (r *tardy) id() string { return cmp.Or(r.late, "c001") }

// since returns how long the proxy has ended; 0 if it runs.
func (r *tardy) since() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, there := r.containers[r.id()]
	if r.first.IsZero() && there && c.State == sidecar.Exited {
		r.first = time.Now()
	}
	if r.first.IsZero() {
		return 0
	}
	return time.Since(r.first)
}

func (r *tardy) List(ctx context.Context, podUID string) ([]sidecar.Container, error) {
	out, err := r.fakeNode.List(ctx, podUID)
	since := r.since()
	for i := range out {
		if out[i].ID == r.id() && out[i].State == sidecar.Exited {
			if r.asked++; since < r.lists {
				out[i].State = sidecar.Running
			}
		}
	}
	return out, err
}

func (r *tardy) End(ctx context.Context, id string) (sidecar.End, error) {
	if id == r.id() && r.since() < r.tells {
		return sidecar.End{}, sidecar.ErrNotEnded
	}
	return r.fakeNode.End(ctx, id)
}

func (r *tardy) Wait(ctx context.Context, id string) error {
	err := r.fakeNode.Wait(ctx, id)
	if err == nil && r.unsure {
		return sidecar.ErrGone
	}
	return err
}

func (r *tardy) Remove(ctx context.Context, id string) error {
	if id == r.id() && r.removed == 0 {
		r.removed = r.since()
	}
	return r.fakeNode.Remove(ctx, id)
}

// lateEnd is an end of a proxy that the runtime tells late.
type lateEnd struct {
	runtime tardy
	policy  string
	code    int32
	started time.Duration // at the latest; 0: no other is started
	why     string
}

// checkNext checks whether another proxy is started.
func (c lateEnd) checkNext(t *testing.T, r *tardy) {
	t.Helper()
	if next := r.containers["c002"]; (next != nil) != (c.started > 0) || next != nil && next.Created.Sub(r.first) > c.started {
		t.Errorf("the next one is %+v", next)
	}
	if said := r.said["u1"]; c.started > 0 && said.Restarts != 1 || c.started == 0 && said.State != v1alpha1.Ended {
		t.Errorf("the ManagedProxy says %+v", said)
	}
}

// checkWhy checks what is said of the end, and that the old container is removed once the runtime knows of it.
func (c lateEnd) checkWhy(t *testing.T, r *tardy) {
	t.Helper()
	if said := r.said["u1"]; !strings.Contains(said.Failure, c.why) || strings.Contains(said.Failure, endedUnreported+"; ") {
		t.Errorf("the ManagedProxy says %+v", said)
	}
	if _, there := r.containers["c001"]; there != (c.started == 0) || r.removed < min(r.lists, c.started) && c.started > 0 || r.asked > 40 {
		t.Errorf("the old container is there: %t, removed after %s, %d lists", there, r.removed, r.asked)
	}
}

// The end of a process is a fact, whatever the runtime still lists: the next proxy starts at once, and how the last one ended is said later. A proxy
// that may have ended for good is not started before that is known.
func TestWatch_runtimeIsLate_endCounts(t *testing.T) {
	const late = 420 * time.Millisecond
	for name, c := range map[string]lateEnd{
		"the list is late":                  {runtime: tardy{lists: late, tells: late}, code: 139, started: 200 * time.Millisecond, why: "exit code 139"},
		"the status is later":               {runtime: tardy{lists: late, tells: 2 * late}, code: 139, started: 200 * time.Millisecond, why: "exit code 139"},
		"the status is late, not the list":  {runtime: tardy{tells: late}, code: 139, started: 200 * time.Millisecond, why: "exit code 139"},
		"the status never comes":            {runtime: tardy{lists: late, tells: time.Hour}, code: 139, started: 200 * time.Millisecond, why: endedUnknown},
		"its process is not known":          {runtime: tardy{lists: late, unsure: true}, code: 139, started: 900 * time.Millisecond, why: "exit code 139"},
		"it may have ended for good, fails": {runtime: tardy{lists: late, tells: late}, policy: profile.RestartOnFailure, code: 1, started: 900 * time.Millisecond, why: "exit code 1"},
		"it has ended for good":             {runtime: tardy{lists: late, tells: 2 * late}, policy: profile.RestartOnFailure},
		"it may have, and nobody ever says": {runtime: tardy{tells: time.Hour}, policy: profile.RestartOnFailure, started: wordsTime + 2*time.Second, why: endedUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				r := &c.runtime
				r.fakeNode = n
				if c.policy != "" {
					n.profile.Spec.RestartPolicy = c.policy
				}
				m, stop := agent()
				defer stop()
				m.Runtime = r
				m.Follow(sandboxOf("u1"))
				n.after(time.Second)
				n.end("c001", c.code)
				n.after(20 * time.Millisecond) // the fake's own wait is not at once
				n.change(func() {
					if n.said["u1"].Ready {
						t.Error("it is said to be ready")
					}
				})
				n.after(max(c.started, 2*time.Second))
				n.change(func() { c.checkNext(t, r) })
				n.after(2 * wordsTime)
				n.change(func() { c.checkWhy(t, r) })
			})
		})
	}
}

// A proxy that was told to finish its connections is removed once the runtime knows of its end.
func TestWatch_drainedProxyEnds_isRemovedLater(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		r := &tardy{fakeNode: n, lists: 420 * time.Millisecond, tells: 420 * time.Millisecond}
		m, stop := agent()
		defer stop()
		m.Runtime = r
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.upgrade(m)
		n.after(5 * time.Second)
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); said.Failure != "" || r.removed < r.lists || r.removed > 2*r.lists {
			t.Errorf("removed after %s; the ManagedProxy says %+v", r.removed, said)
		}
	})
}

// That a proxy hung is why it was replaced, also if the runtime tells later how the successor ended to which it could not hand over.
func TestLiveness_successorsEndIsToldLate_messageSaysThatItHung(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Handover, n.profile.Spec.Liveness = profile.HandoverHAProxy, &profile.Probe{TCPPort: 15021, PeriodSeconds: 5, FailureThreshold: 2}
		m, stop := agent()
		defer stop()
		r := &tardy{fakeNode: n, late: "c002", tells: wordsTime / 2}
		m.Runtime = r
		m.Follow(sandboxOf("u1"))
		n.after(2 * time.Minute)
		n.hang("c001", false)
		n.after(30 * time.Second)
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); r.first.IsZero() || said.Epoch != 2 || !strings.Contains(said.Failure, "questions of liveness") {
			t.Errorf("the ManagedProxy says %+v", said)
		}
	})
}
