package sidecars

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/profile"
)

// signalled is a node that notes which proxies get which signals.
type signalled struct {
	*applications
	got []string
	err error
}

func (s *signalled) Signal(ctx context.Context, id string, signal unix.Signal) error {
	s.mu.Lock()
	s.got = append(s.got, id+" "+unix.SignalName(signal))
	err := s.err
	s.mu.Unlock()
	return errors.Join(err, s.fakeNode.Signal(ctx, id, signal))
}

// signals returns what the node has noted.
func (s *signalled) signals() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// wantTold wants some proxies to have been told to finish, and none to be told again.
func (s *signalled) wantTold(t *testing.T, m *Manager, want []string) {
	t.Helper()
	_ = m.ContainerEnded(t.Context(), sandboxOf("u1"), exitedApp("app", 0, 0))
	if got := s.signals(); !slices.Equal(got, want) {
		t.Errorf("told were %q, want %q", got, want)
	}
}

// looksAfter has an agent look after pod u1 of the node, and returns it a second later.
func (s *signalled) looksAfter(agent func() (*Manager, func())) (m *Manager, stop func()) {
	m, stop = agent()
	m.Runtime, m.Cluster = s, s
	m.Follow(sandboxOf("u1"))
	s.after(time.Second)
	return m, stop
}

// Each proxy that takes connections is told once, by its own signal. What still runs after a quarter of a second is killed: CRI-O would give it
// two minutes before it ends the sandbox, and the pod with it.
func TestFinish_proxies_onlyRunningOnesAreTold(t *testing.T) {
	away := errors.New("not now")
	for name, c := range map[string]struct {
		prepare func(*fakeNode)
		before  func(*signalled, *Manager)
		want    []string
		took    time.Duration
		err     error
	}{
		"HAProxy": {want: []string{"c001 SIGUSR1"}, took: 20 * time.Millisecond},
		"another": {
			prepare: func(n *fakeNode) { n.profile.Spec.Handover = profile.HandoverNone }, want: []string{"c001 SIGTERM"}, took: 20 * time.Millisecond,
		},
		"one that does not finish": {
			prepare: func(n *fakeNode) { n.behave = func(p *fakeProxy) { p.drains = -1 } }, want: []string{"c001 SIGUSR1", "c001 SIGKILL"}, took: finishWait,
		},
		"one whose predecessor drains": {
			prepare: func(n *fakeNode) {
				n.behave = func(p *fakeProxy) { p.drains = map[uint32]time.Duration{0: -1, 1: 20 * time.Millisecond}[p.Epoch] }
			},
			before: func(s *signalled, m *Manager) {
				s.upgrade(m)
				s.after(time.Second)
				s.got = nil
			},
			want: []string{"c002 SIGUSR1", "c001 SIGKILL"}, took: finishWait,
		},
		"one that has ended": {
			before: func(s *signalled, _ *Manager) {
				s.change(func() { s.failures["remove"], s.failures["create"] = away, away })
				s.end("c001", 1)
				s.after(time.Second)
			},
		},
		"one of another sandbox": {
			before: func(s *signalled, _ *Manager) {
				s.change(func() { s.containers["c001"].Sandbox = "sandbox-old"; s.failures["create"] = away })
				s.after(15 * time.Second)
			},
		},
		"one that cannot be told": {
			before: func(s *signalled, _ *Manager) { s.change(func() { s.err = away }) }, want: []string{"c001 SIGUSR1"}, err: away,
		},
		"one that has just gone": {
			before: func(s *signalled, _ *Manager) { s.change(func() { s.err = sidecar.ErrGone }) }, want: []string{"c001 SIGUSR1"}, took: 20 * time.Millisecond,
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				n.behave = func(p *fakeProxy) { p.drains = 20 * time.Millisecond }
				if c.prepare != nil {
					c.prepare(n)
				}
				s := &signalled{applications: &applications{fakeNode: n, policy: corev1.RestartPolicyNever, all: []sidecar.Application{exitedApp("app", 0, 0)}}}
				m, stop := agent()
				defer stop()
				m.Runtime, m.Cluster = s, s
				m.Follow(sandboxOf("u1"))
				n.after(time.Second)
				if c.before != nil {
					c.before(s, m)
				}
				began := time.Now()
				err := m.ContainerEnded(t.Context(), sandboxOf("u1"), exitedApp("app", 0, 0))
				if took := time.Since(began); !errors.Is(err, c.err) || took < c.took || took > c.took+10*time.Millisecond {
					t.Errorf("it took %s: %v", took, err)
				}
				s.wantTold(t, m, c.want)
			})
		})
	}
}

// An agent that ends in the middle leaves proxies the time that they have.
func TestFinish_agentEnds_proxyKeepsItsTime(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = func(p *fakeProxy) { p.drains = 100 * time.Millisecond }
		s := &signalled{applications: &applications{fakeNode: n, policy: corev1.RestartPolicyNever, all: []sidecar.Application{exitedApp("app", 0, 0)}}}
		m, stop := agent()
		defer stop()
		m.Runtime, m.Cluster = s, s
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := m.ContainerEnded(ctx, sandboxOf("u1"), exitedApp("app", 0, 0)); err != nil {
			t.Error(err)
		}
		s.wantTold(t, m, []string{"c001 SIGUSR1"})
	})
}

// unwatched is a node whose runtime cannot be asked when a proxy ends.
type unwatched struct{ *signalled }

func (unwatched) Wait(context.Context, string) error { return errors.New("not now") }

func TestFinish_endCannotBeWaitedFor_proxyKeepsItsTime(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = func(p *fakeProxy) { p.drains = 100 * time.Millisecond }
		s := &signalled{applications: &applications{fakeNode: n, policy: corev1.RestartPolicyNever, all: []sidecar.Application{exitedApp("app", 0, 0)}}}
		m, stop := agent()
		defer stop()
		m.Runtime, m.Cluster = unwatched{s}, s
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		if err := m.ContainerEnded(t.Context(), sandboxOf("u1"), exitedApp("app", 0, 0)); err != nil {
			t.Error(err)
		}
		n.change(func() {
			if p := n.containers["c001"]; p != nil && p.exit != 0 {
				t.Errorf("it has ended with exit code %d", p.exit)
			}
		})
	})
}

// Where the runtime does not say when a container ended, its list does.
func TestContainerEnded_runtimeDoesNotSayWhen_listCounts(t *testing.T) {
	maybe := sidecar.Application{ID: "app", Name: "app", State: sidecar.Running}
	for name, c := range map[string]struct {
		listed sidecar.Application
		want   []string
	}{
		"it is being stopped":                 {maybe, nil},
		"it has ended":                        {exitedApp("app", 0, 0), []string{"c001 SIGUSR1", "c001 SIGKILL"}},
		"it has failed, and is started again": {exitedApp("app", 0, 1), nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				s := &signalled{applications: &applications{fakeNode: n, policy: corev1.RestartPolicyOnFailure, all: []sidecar.Application{c.listed}}}
				m, stop := s.looksAfter(agent)
				defer stop()
				if err := m.ContainerEnded(t.Context(), sandboxOf("u1"), maybe); err != nil || !slices.Equal(s.signals(), c.want) {
					t.Errorf("told were %q, error %v; want %q", s.signals(), err, c.want)
				}
			})
		})
	}
}

// A pod that is deleted by force is gone before its application has ended. The manager finds out by itself, or is told.
func TestFinishWithApplication_podIsGone_proxyIsEnded(t *testing.T) {
	for name, gone := range map[string]func(*Manager){
		"it finds out": func(m *Manager) { m.Follow(sandboxOf("u1")) },
		"it is told":   func(m *Manager) { m.Unfollow("u1") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				n.behave = func(p *fakeProxy) { p.drains = -1 }
				s := &signalled{applications: &applications{fakeNode: n, all: []sidecar.Application{{ID: "app", Name: "app", State: sidecar.Running}}}}
				m, stop := s.looksAfter(agent)
				defer stop()
				n.change(func() { n.gone = true })
				gone(m)
				n.after(5 * time.Second)
				if len(s.signals()) > 0 {
					t.Errorf("told were %q while the application runs", s.signals())
				}
				n.change(func() { s.all[0] = exitedApp("app", 0, 143) })
				n.after(5 * time.Second)
				if want := []string{"c001 SIGUSR1", "c001 SIGKILL"}; !slices.Equal(s.signals(), want) || follows(m, sandboxOf("u1").Key()) || len(n.containers) > 0 {
					t.Errorf("told were %q, want %q; followed: %t, left: %v", s.signals(), want, follows(m, sandboxOf("u1").Key()), n.containers)
				}
			})
		})
	}
}

// An agent that has told a proxy to finish and is killed leaves it to the next one to end it.
func TestFinishWithApplication_agentWasKilled_nextOneEndsTheProxy(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = func(p *fakeProxy) { p.drains = -1 }
		s := &signalled{applications: &applications{fakeNode: n, all: []sidecar.Application{exitedApp("app", 0, 143)}}}
		m, stop := s.looksAfter(agent)
		defer stop()
		if err := m.Homes.Of(podnet.Key{PodUID: "u1", Sandbox: sandboxOf("u1").ID}).NoteFinished(); err != nil {
			t.Fatal(err)
		}
		n.change(func() { n.ending = true })
		m.Follow(sandboxOf("u1"))
		n.after(5 * time.Second)
		if got := n.running(); len(got) > 0 || !slices.Contains(s.signals(), "c001 SIGKILL") {
			t.Errorf("%v run, signals were %q", got, s.signals())
		}
	})
}

// making is a node whose runtime takes its time to make a proxy.
type making struct{ *signalled }

func (m making) Create(ctx context.Context, spec sidecar.Spec) (string, error) {
	<-time.After(3 * time.Second)
	return m.fakeNode.Create(ctx, spec)
}

// A proxy that the runtime still makes when the application ends cannot be told then. CRI-O waits for it, too.
func TestFinishWithApplication_proxyIsBeingMade_isEnded(t *testing.T) {
	for name, ending := range map[string]bool{"the pod is being deleted": true, "a Job completes": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				n.behave = func(p *fakeProxy) { p.drains = -1 }
				s := &signalled{applications: &applications{fakeNode: n, policy: corev1.RestartPolicyNever, all: []sidecar.Application{exitedApp("app", 0, 0)}}}
				m, stop := agent()
				defer stop()
				m.Runtime, m.Cluster = making{s}, s
				m.Follow(sandboxOf("u1"))
				n.after(time.Second)
				n.change(func() { n.ending = ending })
				if err := m.ContainerEnded(t.Context(), sandboxOf("u1"), exitedApp("app", 0, 0)); err != nil || len(s.signals()) > 0 {
					t.Errorf("told were %q, error %v", s.signals(), err)
				}
				n.after(2*time.Second + finishWait + probe.StartPoll)
				if want := []string{"c001 SIGUSR1", "c001 SIGKILL"}; !slices.Equal(s.signals(), want) {
					t.Errorf("told were %q, want %q", s.signals(), want)
				}
				n.after(10 * time.Second)
				if got := n.running(); len(got) > 0 || n.next != 1 {
					t.Errorf("%v run, %d were made", got, n.next)
				}
			})
		})
	}
}

// Without a word of the runtime the agent sees by itself that the application of a pod that ends has ended.
func TestFinishWithApplication_runtimeSaysNothing_proxyIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		s := &signalled{applications: &applications{fakeNode: n, all: []sidecar.Application{exitedApp("init", 0, 0), {ID: "app", Name: "app", State: sidecar.Running}}}}
		m, stop := s.looksAfter(agent)
		defer stop()
		n.change(func() { n.ending = true })
		m.Follow(sandboxOf("u1"))
		n.after(5 * time.Second)
		if len(s.signals()) > 0 {
			t.Errorf("told were %q while the application runs", s.signals())
		}
		n.change(func() { s.all[1] = exitedApp("app", 0, 143) })
		n.after(cleanInterval)
		if want := []string{"c001 SIGUSR1", "c001 SIGKILL"}; !slices.Equal(s.signals(), want) {
			t.Errorf("told were %q, want %q", s.signals(), want)
		}
		n.after(5 * time.Second)
		if got := n.running(); len(got) > 0 || n.next != 1 {
			t.Errorf("%v run, %d were made", got, n.next)
		}
	})
}
