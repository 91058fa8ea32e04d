package sidecars

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/rollout"
)

// What ends with its pod or its sandbox has not failed.
func TestNoteEnds_podEnding_isNoFailure(t *testing.T) {
	for name, ends := range map[string]func(*fakeNode){
		"its pod is being deleted": func(n *fakeNode) { n.ending = true },
		"its sandbox has ended":    func(n *fakeNode) { n.stopped = map[string]bool{"sandbox-u1": true} },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				m, stop := agent()
				m.Keep(sandboxOf("u1"))
				n.after(time.Second)
				n.change(func() { ends(n) })
				n.end("c001", 137)
				n.after(time.Second)
				n.change(func() {
					if said := n.said["u1"]; said.Restarts != 0 || said.Message != "" || said.Failure != "" {
						t.Errorf("the ManagedProxy says %+v", said)
					}
				})
				stop()
			})
		})
	}
}

// Nothing of a pod that is gone stays, as soon as its proxy has ended.
func TestClean_podGone_leavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() { n.gone = true })
		m.Notify("")
		n.after(3 * time.Second)
		if got := n.running(); len(got) != 1 {
			t.Errorf("%v run: the kubelet ends them, not the agent", got)
		}
		n.end("c001", 137)
		n.after(3 * time.Second)
		homes, err := filepath.Glob(filepath.Join(m.Homes.Root, "*.*"))
		if err != nil || len(homes) > 0 || len(n.containers) > 0 || len(n.said) > 0 {
			t.Errorf("left are homes %v, containers %v, reports %v, error %v", homes, n.containers, n.said, err)
		}
		stop()
	})
}

// A pod that opts out while no agent runs has its proxy ended by the next one, though its rules are gone already.
func TestSweep_optedOutMeanwhile_endsProxy(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		stop()
		n.change(func() { n.chosen = "" })
		m, stop = agent()
		n.after(time.Minute)
		if len(n.containers) > 0 || len(n.said) > 0 {
			t.Errorf("left are containers %v, reports %v", n.containers, n.said)
		}
		if m.Follows("u1") {
			t.Error("it is still followed")
		}
		stop()
	})
}

// A pod that has finished may be there for days. Its ManagedProxy says that it has ended, and nothing else is left.
func TestStep_podFinished_keepsSidecar(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(time.Minute)
		n.change(func() { n.finished, n.ending = true, true })
		n.end("c001", 137) // before the kubelet has stopped the sandbox
		n.after(time.Minute)
		n.mustSay(t, "u1", v1alpha1.Ended, false)
		homes, err := filepath.Glob(filepath.Join(m.Homes.Root, "*.*"))
		if err != nil || len(homes) > 0 || len(n.containers) > 0 || n.next != 1 || m.Follows("u1") {
			t.Errorf("left are homes %v, containers %v of %d, error %v", homes, n.containers, n.next, err)
		}
		stop()
	})
}

// A sandbox that has ended while its pod has not is looked at every 30 s only: an event announces the next sandbox.
func TestAgain_sandboxEnded_looksSeldom(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(time.Minute)
		n.change(func() { n.stopped = map[string]bool{"sandbox-u1": true} })
		n.end("c001", 137)
		n.after(time.Minute)
		n.change(func() { n.asks = 0 })
		n.after(10 * time.Minute)
		if n.next != 1 || n.asks > 100 {
			t.Errorf("%d proxies were made; the runtime was asked %d times in 10 minutes", n.next, n.asks)
		}
		stop()
	})
}

// A proxy that is ready is looked at as often as it is asked, and no more often.
func TestAgain_idleProxy_oneLookAPeriod(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		n.after(3 * time.Second) // so that they are not looked at together with everything else
		const proxies = 5
		check := func() {
			for i := range proxies {
				m.Keep(sandboxOf("u" + strconv.Itoa(i)))
			}
		}
		check()
		n.after(time.Minute)
		n.change(func() { n.asks = 0 })
		for range 10 * 12 { // the verifier's checks, at a time of their own
			n.after(5 * time.Second)
			check()
		}
		const looks, sweeps = proxies * 6 * 10, 2 * 10
		if len(n.containers) != proxies || n.asks > looks+sweeps+2*proxies {
			t.Errorf("for %d proxies the runtime was asked %d times in 10 minutes, want at most %d", len(n.containers), n.asks, looks+sweeps)
		}
		stop()
	})
}

// Pods whose proxies failed keep the others waiting only as long as they are there.
func TestRollouts_failedPodGone_endsPause(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		for _, uid := range []string{"u1", "u2", "u3", "u4", "u5", "u6"} {
			m.Follow(sandboxOf(uid))
		}
		n.after(2 * time.Second)
		n.change(func() { n.behave = func(p *fakeProxy) { p.readyAfter = -1 } })
		n.upgrade(m)
		n.after(25 * time.Second)
		n.change(func() { n.behave = func(*fakeProxy) {} })
		failed := []string{}
		n.change(func() {
			for uid, said := range n.said {
				if said.FailedHash != "" {
					failed = append(failed, uid)
				}
			}
		})
		if len(failed) != 4 {
			t.Errorf("%q have failed", failed)
		}
		for _, uid := range failed {
			m.Unfollow(uid)
		}
		n.after(time.Minute)
		n.mustSum(t, rollout.NodeCount{Pods: 2, Upgraded: 2})
		stop()
	})
}

// A proxy whose profile is gone runs on, and is taken for ready: with its pod it is left as it was, by the next agent, too.
func TestStep_profileDeleted_proxyStays(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() { n.chosen = "gone" })
		for range 2 {
			m.Follow(sandboxOf("u1"))
			n.after(time.Minute)
			n.mustSay(t, "u1", v1alpha1.Running, true)
			stop()
			m, stop = agent()
		}
		stop()
		if got := n.running(); !slices.Equal(got, []string{"c001"}) {
			t.Errorf("%v run", got)
		}
	})
}

// A proxy that hangs is not ready. It is ready again as soon as it answers.
func TestAsk_proxySilent_isNotReadyAndStays(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() { n.containers["c001"].readyAfter = -1 })
		n.after(11 * time.Second)
		n.mustSay(t, "u1", v1alpha1.Running, false)
		n.change(func() { n.containers["c001"].readyAfter = 0 })
		n.after(2 * time.Second)
		n.mustSay(t, "u1", v1alpha1.Running, true)
		if n.next != 1 {
			t.Errorf("%d proxies were made: one that has been ready is not given up", n.next)
		}
		stop()
	})
}

// The runtime ends a sandbox while the agent starts a proxy in it: no failure of a pod that is being deleted.
func TestStart_podEnding_isNoFailure(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(time.Minute)
		n.change(func() { n.ending, n.failures["create"] = true, errors.New("the sandbox's container is not running") })
		n.end("c001", 137)
		n.after(time.Second)
		n.change(func() {
			if said := n.said["u1"]; said.Failure != "" || n.sum().Failed > 0 {
				t.Errorf("the ManagedProxy says %+v, the profile %+v", said, n.sum())
			}
			n.gone = true
		})
		n.after(5 * time.Second)
		if m.Follows("u1") {
			t.Error("a pod that is gone is still followed")
		}
		stop()
	})
}

// A pod that is refused has no proxy that could end. It is forgotten all the same when it is gone.
func TestStep_refusedPodGone_isForgotten(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(time.Minute)
		n.change(func() { n.chosen = "gone" })
		n.end("c001", 137)
		n.after(time.Minute)
		n.change(func() { n.gone = true })
		n.after(time.Minute)
		homes, err := filepath.Glob(filepath.Join(m.Homes.Root, "*.*"))
		if err != nil || len(homes) > 0 || m.Follows("u1") {
			t.Errorf("left are homes %v, followed %t, error %v", homes, m.Follows("u1"), err)
		}
		stop()
	})
}

// A proxy that hangs at its start costs less the longer that takes, and one that comes late is noticed within a second.
func TestAgain_proxyHangsAtStart_asksSeldom(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Readiness.StartSeconds = 600
		n.behave = func(p *fakeProxy) { p.readyAfter = -1 }
		m, stop := agent()
		defer stop()
		c := &counted{fakeNode: n, asks: map[uint32]int{}}
		m.Asker = c
		m.Follow(sandboxOf("u1"))
		var first, all, lists int
		n.after(time.Second)
		n.change(func() { first = c.asks[0] })
		n.after(9 * time.Second)
		n.change(func() { all, lists = c.asks[0], n.asks })
		if first < 12 || all > 60 || lists > 20 {
			t.Errorf("the proxy was asked %d times in the first second, and %d times in ten, and the runtime for %d lists", first, all, lists)
		}
		n.after(2 * time.Minute)
		n.change(func() { n.containers["c001"].readyAfter = 0 })
		n.after(probe.SilentPoll)
		n.mustSay(t, "u1", v1alpha1.Running, true)
	})
}

// The message shows the last failure until the next proxy has been ready for a minute, however long its start takes.
func TestReport_failure_isSaidUntilNextIsCalm(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Readiness.StartSeconds = 600
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() { n.behave = func(p *fakeProxy) { p.readyAfter = 2 * stableTime } })
		n.end("c001", 3)
		n.after(2*stableTime + stableTime/2)
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); !strings.Contains(said.Message, "exit code 3") {
			t.Errorf("half a minute after it is ready the ManagedProxy says %+v", said)
		}
		n.after(stableTime)
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); said.Message != "" || said.Failure != "" {
			t.Errorf("at last the ManagedProxy says %+v", said)
		}
	})
}

// The runtime may say that a proxy has ended before it has written the proxy's last lines.
func TestHearLastWords_writtenLate_areSaid(t *testing.T) {
	log := filepath.Join(t.TempDir(), "0.log")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(log, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		write("2026-11-22T08:00:00.1Z stdout F starts\n")
		n.log = log
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.end("c001", 3)
		n.after(10 * time.Millisecond)
		write("2026-11-22T08:00:00.1Z stdout F starts\n2026-11-22T08:00:01.1Z stdout F bye\n")
		n.after(time.Second)
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); !strings.HasSuffix(said.Message, "exit code 3 (Error); its last words: starts / bye") {
			t.Errorf("the ManagedProxy says %+v", said)
		}
		if err := os.Remove(log); err != nil {
			t.Fatal(err)
		}
		n.after(2 * time.Second)
		if said := n.said["u1"]; !strings.HasSuffix(said.Message, "bye") {
			t.Errorf("without the log the ManagedProxy says %+v", said)
		}
	})
}
