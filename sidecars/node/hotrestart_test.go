package node

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/profile"
)

// Each proxy takes over from the one before it without losing a connection.
func TestHotRestart_newVersion_takesOver(t *testing.T) {
	t.Parallel()
	n := newEnvoyNode(t)
	m, stop := n.agent(t)
	defer stop()
	n.await(t, "envoy:1")
	l, end := n.startLoad()
	for _, image := range []string{"envoy:2", "envoy:3", "envoy:4", "envoy:5"} {
		n.upgrade(m, image)
		n.await(t, image)
		noAbstractSockets(t, n.pod())
	}
	end()
	l.mustBeWhole(t)
	if got, want := n.line(), "0/4/11.104"; got != want {
		t.Errorf("the last one's place is %s, want %s", got, want)
	}
	if s := n.says(); s.Restarts != 0 || s.Message != "" {
		t.Errorf("the ManagedProxy says %+v", s)
	}
}

// noAbstractSockets wants no unix socket that a process of the application could reach: abstract ones belong to the network namespace.
func noAbstractSockets(t *testing.T, pod *netns.NS) {
	t.Helper()
	err := pod.Inside(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/unix")
		if strings.Contains(string(text), " @") || !strings.Contains(string(text), "/run") {
			t.Errorf("the pod's unix sockets are\n%s", text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// One that is ended at once by its successor is not taken for one that has crashed.
func TestHotRestart_noDrainTime_endsAtOnce(t *testing.T) {
	t.Parallel()
	n := newEnvoyNode(t)
	n.spec.Rollout.DrainSeconds = 0
	m, stop := n.agent(t)
	defer stop()
	n.await(t, "envoy:1")
	n.upgrade(m, "envoy:2")
	n.await(t, "envoy:2")
	if s := n.says(); s.Restarts != 0 || s.Message != "" || n.line() != "0/1/11.104" {
		t.Errorf("the ManagedProxy says %+v of %s", s, n.line())
	}
}

// What cannot take over leaves the running proxy as it is, and a later one that can takes over without a loss.
func TestHotRestart_newEnvoyFails_oldOneStays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ image, why string }{
		"it ends while it starts":     {"envoy:2,STANDIN_FAULT=crash", "exit code 1"},
		"it hangs":                    {"envoy:2,STANDIN_FAULT=hang", "not ready within 2s"},
		"its protocol is another one": {"envoy:2,STANDIN_VERSION=12.104", "that of envoy:2,STANDIN_VERSION=12.104 is 12.104"},
		"it is no Envoy":              {"envoy:2,STANDIN_VERSION=haproxy", "which is no version"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newEnvoyNode(t)
			m, stop := n.agent(t)
			defer stop()
			n.await(t, "envoy:1")
			l, end := n.startLoad()
			defer end()
			if name == "it hangs" {
				n.allow(2)
			}
			n.upgrade(m, c.image)
			eventually(t, "the ManagedProxy says "+c.why, func() bool { return strings.Contains(n.says().Message, c.why) },
				func() string { return fmt.Sprintf("%+v", n.says()) })
			if s := n.says(); !s.Ready || s.Image != "envoy:1" {
				t.Errorf("the ManagedProxy says %+v", s)
			}
			stop() // the next agent learns that what runs serves, although it no longer says so itself
			n.allow(20)
			m, stop = n.agent(t)
			defer stop()
			n.upgrade(m, "envoy:3")
			n.await(t, "envoy:3")
			end()
			l.mustBeWhole(t)
			if got, want := n.line(), "0/1/11.104"; got != want {
				t.Errorf("the last one's place is %s, want %s", got, want)
			}
		})
	}
}

// A proxy that is lost is replaced by one that starts by itself, in a line of its own.
func TestHotRestart_envoyIsLost_isReplaced(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lose  func(*testing.T, envoyNode, *sidecars.Manager)
		image string
	}{
		"the running one ends while its successor starts": {losesParent, "envoy:2"},
		"its successor ends as soon as it has taken over": {losesSuccessor, "envoy:1"},
		"the profile accepts that connections are lost":   {acceptsLoss, "envoy:2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newEnvoyNode(t)
			m, stop := n.agent(t)
			defer stop()
			n.await(t, "envoy:1")
			c.lose(t, n, m)
			n.await(t, c.image)
			if place := n.line(); strings.HasPrefix(place, "0/") || !strings.Contains(place, "/0/") {
				t.Errorf("its place is %s, want the first one of a new line", place)
			}
			l, end := n.startLoad()
			n.upgrade(m, "envoy:9"+strings.TrimPrefix(n.spec.Image, c.image))
			n.await(t, "envoy:9")
			end()
			l.mustBeWhole(t)
		})
	}
}

// losesParent is noticed at once, and not by the time that a successor may take to start.
func losesParent(t *testing.T, n envoyNode, m *sidecars.Manager) {
	t.Helper()
	n.allow(600)
	n.upgrade(m, "envoy:2")
	eventually(t, "both run", func() bool { return len(n.images()) == 2 }, func() string { return fmt.Sprint(n.images()) })
	n.kill(t, 0)
}

// losesSuccessor goes back to the version that still runs, but no longer listens.
func losesSuccessor(t *testing.T, n envoyNode, m *sidecars.Manager) {
	t.Helper()
	n.upgrade(m, "envoy:2,STANDIN_FAULT=crash-after")
	eventually(t, "it has ended", func() bool { return n.says().Message != "" }, func() string { return fmt.Sprintf("%+v", n.says()) })
	n.upgrade(m, "envoy:1")
}

func acceptsLoss(_ *testing.T, n envoyNode, m *sidecars.Manager) {
	n.edit(m, func(s *profile.Spec) {
		s.HotRestart = &v1alpha1.EnvoyHotRestart{OnIncompatibleVersion: v1alpha1.IncompatibleReplace}
		s.Image = "envoy:2,STANDIN_VERSION=12.104"
	})
}

// Whatever call the agent is killed after, no connection is lost, and the next agent ends with the proxy that is wanted.
func TestHotRestart_agentIsKilled_nextOneGoesOn(t *testing.T) {
	t.Parallel()
	for kill := 1; ; kill++ {
		finished := false
		t.Run(fmt.Sprintf("after call %d", kill), func(t *testing.T) {
			n := newEnvoyNode(t)
			m, stop := n.agent(t)
			n.await(t, "envoy:1")
			l, end := n.startLoad()
			defer end()
			n.mu.Lock()
			n.calls, n.killAfter = 0, kill
			n.mu.Unlock()
			n.upgrade(m, "envoy:2")
			eventually(t, "the agent is killed or done", func() bool {
				said := n.says()
				n.mu.Lock()
				defer n.mu.Unlock()
				finished = said.Ready && said.Image == "envoy:2" && len(n.all) == 1
				return n.calls >= kill || finished
			}, func() string { return fmt.Sprintf("%+v", n.says()) })
			stop()
			n.mu.Lock()
			n.killAfter = 0
			n.mu.Unlock()
			_, stop = n.agent(t)
			defer stop()
			n.await(t, "envoy:2")
			end()
			l.mustBeWhole(t)
		})
		if finished || t.Failed() {
			if kill < 6 {
				t.Errorf("only %d calls were tried", kill)
			}
			return
		}
	}
}

// kill ends the process of an epoch as a crash would.
func (p *processes) kill(t *testing.T, epoch uint32) {
	t.Helper()
	p.mu.Lock()
	var one *process
	for _, c := range p.all {
		if c.Epoch == epoch && c.State == sidecar.Running {
			one = c
		}
	}
	p.mu.Unlock()
	if one == nil {
		t.Fatalf("no proxy of epoch %d runs", epoch)
	}
	_ = one.cmd.Process.Kill()
	<-one.done
}

// What one that ended while it started has left behind is put right without knowing the protocol's version.
func TestHotRestart_otherProtocol_nextOneTakesOver(t *testing.T) {
	t.Parallel()
	const other = ",STANDIN_VERSION=12.104"
	n := newEnvoyNode(t)
	n.spec.Image = "envoy:1" + other
	m, stop := n.agent(t)
	defer stop()
	n.await(t, "envoy:1")
	l, end := n.startLoad()
	n.upgrade(m, "envoy:2"+other+",STANDIN_FAULT=crash")
	eventually(t, "it has ended", func() bool { return n.says().Message != "" }, func() string { return fmt.Sprintf("%+v", n.says()) })
	n.upgrade(m, "envoy:3"+other)
	eventually(t, "the third one is ready", func() bool { return n.says().Ready && strings.HasPrefix(n.says().Image, "envoy:3") }, func() string { return fmt.Sprintf("%+v", n.says()) })
	end()
	l.mustBeWhole(t)
	if got, want := n.line(), "0/1/12.104"; got != want {
		t.Errorf("the last one's place is %s, want %s", got, want)
	}
}
