package shared

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"istio-pod-network-controller/internal/podnet"
)

// disk is what an agent that is killed leaves behind.
type disk struct{ from, copied string }

// noteDisk copies it.
func (n *fakeNode) noteDisk() disk {
	d := disk{filepath.Join(n.root, "edge"), filepath.Join(n.root, "copied")}
	text, err := os.ReadFile(filepath.Join(d.from, stateName))
	if err == nil {
		err = os.CopyFS(filepath.Join(d.copied, "files"), os.DirFS(filepath.Join(d.from, "files")))
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(d.copied, stateName), text, 0o600)
	}
	if err != nil {
		n.t.Error(err)
	}
	return d
}

// comeBack has the disk be as it was.
func (d disk) comeBack(t *testing.T) {
	t.Helper()
	for _, name := range []string{"files", stateName} {
		if err := os.RemoveAll(filepath.Join(d.from, name)); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(d.copied, name), filepath.Join(d.from, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// moment is when an agent is killed while b joins a.
type moment struct {
	told    bool // it is killed when it tells the proxy, not when it has the files checked
	swapped bool
	loads   bool // the proxy has taken it
	later   bool // the proxy takes it after the next agent has started
	torn    bool // it was writing files
	reloads int  // how often the next agent may tell the proxy
}

// Whatever an agent has done until it is killed, the next one has the proxy serve both, tells it once at most, and a is served all the time,
// also if the proxy starts anew before there is another agent.
func TestApply_agentKilledBetweenSteps_nextOneGoesOn(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]moment{
		"next is written, not checked":                  {reloads: 1},
		"the state is written, current is not swapped":  {told: true, reloads: 1},
		"current is swapped, the proxy is not told":     {told: true, swapped: true, reloads: 1},
		"the proxy is told, and takes it later":         {told: true, swapped: true, later: true, reloads: 1},
		"the proxy has taken it, that is not confirmed": {told: true, swapped: true, loads: true},
		"the next state was being written":              {told: true, swapped: true, loads: true, torn: true},
		"a link was being replaced":                     {told: true, torn: true, reloads: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at.run(t, false)
		})
		if !at.later {
			t.Run(name+", and the proxy starts anew", func(t *testing.T) {
				t.Parallel()
				at.run(t, true)
			})
		}
	}
}

func (at moment) run(t *testing.T, anew bool) {
	t.Helper()
	n, m, pods := newServing(t, "a")
	a := pods[0]
	d := newDirectory(n.root, "edge")
	old := d.target(currentLink)
	n.change(func() { n.always = []string{"a"} })
	b := at.kill(n, m)
	at.leave(n, d, old)
	if anew {
		n.stopProxy()
		if !n.startProxy() {
			t.Fatal("the proxy does not start with what was left behind")
		}
	}
	before := n.reloadCount()
	m = n.agent()
	m.Follow(a, "edge")
	m.Follow(b, "edge")
	n.served(m, "a b")
	pause(t.Context(), 1200*time.Millisecond)
	n.served(m, "a b")
	if got := n.reloadCount() - before; got > at.reloads {
		t.Errorf("%d reloads, want %d at most", got, at.reloads)
	}
	state, err := d.load()
	if err != nil || state.Confirmed == nil || state.Confirmed.Dir != d.target(currentLink) || state.Confirmed.Version != n.answer() {
		t.Errorf("current is %s, the state %+v, error %v", d.target(currentLink), state, err)
	}
}

// kill ends the agent while b joins, and has the disk be as it was at that moment.
func (at moment) kill(n *fakeNode, m *Manager) (b podnet.Sandbox) {
	n.t.Helper()
	killed, left := make(chan struct{}), disk{}
	hook := func(ctx context.Context) error {
		left = n.noteDisk()
		close(killed)
		<-ctx.Done()
		return ctx.Err()
	}
	n.change(func() {
		if at.told {
			n.telling = hook
		} else {
			n.checking = hook
		}
	})
	b = n.follow(m, "b")[0]
	select {
	case <-killed:
	case <-time.After(time.Minute):
		n.t.Fatal("no step to be killed at")
	}
	n.stop()
	left.comeBack(n.t)
	n.change(func() { n.telling, n.checking = nil, nil })
	return b
}

// leave has all be as the agent and the proxy have left it.
func (at moment) leave(n *fakeNode, d directory, old string) {
	n.t.Helper()
	var err error
	if at.told && !at.swapped {
		err = d.point(currentLink, old)
	}
	if at.torn {
		err = errors.Join(err, os.Symlink("v-99", filepath.Join(d.files(), "..next")),
			os.WriteFile(filepath.Join(d.path, stateName+".new"), []byte(`{"confirmed":`), 0o600))
	}
	if at.loads {
		n.change(n.loadFiles)
	}
	if at.later {
		version, pods, errParse := n.parse("current")
		err = errors.Join(err, errParse)
		time.AfterFunc(300*time.Millisecond, func() { n.change(func() { n.use(version, pods) }) })
	}
	if err != nil {
		n.t.Fatal(err)
	}
}
