package sidecars

import (
	"errors"
	"os"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars/profile"
)

// A proxy that has ended with code 0 is not started again by any agent if its profile says so, until the profile has changed.
func TestIsDone_onFailureAndCode0_isNotStartedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		code   int32
		change func(*fakeNode) // after the second agent has come
		made   int             // proxies, by then and after the change
		state  v1alpha1.State
	}{
		"nothing changes":              {change: func(*fakeNode) {}, made: 1, state: v1alpha1.Ended},
		"the profile has a version":    {change: func(n *fakeNode) { n.profile.Spec.Image = "localhost/haproxy:2" }, made: 2, state: v1alpha1.Running},
		"the profile says Always":      {change: func(n *fakeNode) { n.profile.Spec.RestartPolicy = "Always" }, made: 2, state: v1alpha1.Running},
		"it has ended with an error":   {code: 1, change: func(*fakeNode) {}, made: 2, state: v1alpha1.Running},
		"the pod has finished as well": {change: func(n *fakeNode) { n.finished, n.ending = true, true }, made: 1, state: v1alpha1.Ended},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				n.profile.Spec.RestartPolicy = profile.RestartOnFailure
				m, stop := agent()
				m.Follow(sandboxOf("u1"))
				n.after(time.Minute)
				n.end("c001", c.code)
				n.after(time.Minute)
				stop()
				if said := n.said["u1"]; c.code == 0 && (said.State != v1alpha1.Ended || said.Failure != "" || said.Restarts != 0 || said.Message != endedWell || said.Final) {
					t.Errorf("the ManagedProxy says %+v", said)
				}
				if files, err := os.ReadDir(m.Homes.Of(podnet.Key{PodUID: "u1", Sandbox: "sandbox-u1"}).Epoch(0).Files()); err == nil {
					t.Errorf("files of the proxy are left: %v", files)
				}
				m, stop = agent()
				n.after(time.Second) // it looks at what there is before it knows the pod
				m.Follow(sandboxOf("u1"))
				n.after(time.Minute)
				n.change(func() { c.change(n) })
				m.Notify("")
				n.after(time.Minute)
				n.mustSay(t, "u1", c.state, c.state == v1alpha1.Running)
				if n.next != c.made {
					t.Errorf("%d proxies were made, want %d", n.next, c.made)
				}
				if n.finished && len(n.containers) > 0 {
					t.Errorf("containers %v are left", n.containers)
				}
				stop()
			})
		})
	}
}

// The end of a proxy that has done its work is no failure to the next agent either, also if the profile has changed since, or the last agent has ended
// between its successor's start and its removal.
func TestIsDone_agentAndProfileChange_isNoFailure(t *testing.T) {
	for name, starts := range map[string]bool{"the next agent starts another": false, "the last agent has started another": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				n.profile.Spec.RestartPolicy = profile.RestartOnFailure
				m, stop := agent()
				m.Follow(sandboxOf("u1"))
				n.after(time.Second)
				n.end("c001", 0)
				n.after(time.Second)
				if starts {
					n.change(func() { n.failures["remove"] = errors.New("not now") })
					n.upgrade(m)
					n.after(time.Second)
				}
				stop()
				n.change(func() { clear(n.failures); n.profile.Spec.Image = "localhost/haproxy:2" })
				m, stop = agent()
				defer stop()
				m.Follow(sandboxOf("u1"))
				n.after(time.Second)
				if said := n.mustSay(t, "u1", v1alpha1.Running, true); said.Failure != "" || said.Epoch != 1 || len(n.containers) != 1 || m.Figures()["edge"].Restarts != 0 {
					t.Errorf("the ManagedProxy says %+v of %d containers; %+v", said, len(n.containers), m.Figures())
				}
			})
		})
	}
}

// A new version that ends at once with code 0 has failed: the old one serves, and the new one is tried again.
func TestIsDone_newVersionEndsAtOnce_oldServes(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.RestartPolicy = profile.RestartOnFailure
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() {
			n.behave = func(p *fakeProxy) { time.AfterFunc(10*time.Millisecond, func() { n.end(p.ID, 0) }) }
		})
		n.upgrade(m)
		n.after(time.Minute)
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); said.Failure == "" || said.Epoch != 0 || n.next < 3 {
			t.Errorf("%d proxies were made, and the ManagedProxy says %+v", n.next, said)
		}
	})
}

// What has ended is removed with its sandbox, also if no agent follows that.
func TestSweep_sandboxEnded_removesContainer(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		stop()
		n.end("c001", 137)
		_, stop = agent()
		defer stop()
		n.after(time.Minute)
		if len(n.containers) != 1 {
			t.Error("it was removed although its sandbox runs")
		}
		n.change(func() { n.stopped = map[string]bool{"sandbox-u1": true} })
		n.after(time.Minute)
		if len(n.containers) != 0 {
			t.Error("it is left")
		}
	})
}

// A proxy that the agent has ended did not end by itself, whichever agent finds it.
func TestStop_agentIsKilledBehindIt_nextAgentStartsProxy(t *testing.T) {
	for kill, survived := 1, false; !survived && !t.Failed(); kill++ {
		bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
			n.profile.Spec.Handover, n.profile.Spec.RestartPolicy = profile.HandoverNone, profile.RestartOnFailure
			m, stop := agent()
			m.Follow(sandboxOf("u1"))
			n.after(time.Second)
			n.change(func() { n.killAfter, n.wish = n.calls+kill, Wish("a") })
			m.Notify("edge")
			n.after(time.Minute)
			n.change(func() { survived = n.calls < n.killAfter })
			stop()
			n.change(func() { n.killAfter = 0 })
			m, stop = agent()
			defer stop()
			m.Follow(sandboxOf("u1"))
			n.after(10 * time.Second)
			said := n.said["u1"]
			for _, c := range n.containers {
				if !said.Ready || said.Restarts != 0 || c.Restart != n.wish {
					t.Errorf("killed after call %d: the ManagedProxy says %+v, and there is %+v", kill, said, c)
				}
			}
		})
	}
}

// A proxy of the version before, made while the present one fails, may end for good, too.
func TestIsDone_lastGoodEndsWithCode0_isNotStartedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.RestartPolicy = profile.RestartOnFailure
		n.behave = only(neverReady, image(2))
		m, stop := agent()
		defer stop()
		followMany(m, 3)
		n.after(time.Second)
		n.changeTo(m, 2)
		n.after(time.Minute)
		m.Follow(sandboxOf("new"))
		n.after(time.Second)
		n.mustServe(t, []string{"new"}, 1, "is not known to work")
		for id, c := range n.containers {
			if c.PodUID == "new" {
				n.end(id, 0)
			}
		}
		n.after(time.Minute)
		n.mustSay(t, "new", v1alpha1.Ended, false)
		n.change(func() { n.behave = only(nil) })
		n.changeTo(m, 3)
		n.after(time.Minute)
		n.mustServe(t, []string{"new"}, 3)
	})
}
