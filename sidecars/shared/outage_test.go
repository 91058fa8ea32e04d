package shared

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/test/kerneltest"
)

// A proxy takes longer for each configuration than the agent waits. What it answers in the end is known, so nobody is taken out of it.
func TestManager_lateAnswer_isConfirmed(t *testing.T) {
	t.Parallel()
	n, m, _ := newServing(t, "a")
	n.change(func() { n.always, n.late = []string{"a"}, confirmLimit+2500*time.Millisecond })
	n.follow(m, "b", "c")
	pause(t.Context(), 2*confirmLimit+3*time.Second)
	n.change(func() { n.late = 0 })
	n.served(m, "a b c")
}

// A pod cannot be read, and the API server does not even say so. Others leave all the same.
func TestManager_apiServerAway_podsStay(t *testing.T) {
	t.Parallel()
	n, m, pods := newServing(t, "a", "b")
	gone := pods[1]
	n.change(func() { n.reading = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() } })
	n.follow(m, "c", "d", "e", "f", "g")
	n.edit(gone, func(p *fakePod) { p.chosen = "none" })
	n.served(m, "a")
	n.change(func() { n.reading = nil })
	n.served(m, "a c d e f g")
}

// The runtime is away. The proxy serves on, and so it is said; what has changed meanwhile is done afterwards.
func TestManager_runtimeAway_podsStay(t *testing.T) {
	t.Parallel()
	n, m, pods := newServing(t, "a")
	a := pods[0]
	reloads := n.reloadCount()
	away := func(context.Context) error { return errors.New("connection refused") }
	n.change(func() { n.always, n.finding, n.checking, n.telling = []string{"a"}, away, away, away })
	n.follow(m, "b")
	for range 25 { // 2.5 s
		pause(t.Context(), 100*time.Millisecond)
		if ok, known := m.Serves("edge", a); !ok || !known {
			t.Fatalf("a is served %v, known %v", ok, known)
		}
	}
	n.change(func() { n.finding, n.checking, n.telling = nil, nil, nil })
	n.served(m, "a b")
	if got := n.reloadCount() - reloads; got != 1 {
		t.Errorf("%d reloads", got)
	}
}

// Nobody is to blame for a signal that the runtime does not pass on, and current leads back to what the proxy has.
func TestManager_signalNotPassedOn_blamesNoPod(t *testing.T) {
	t.Parallel()
	n, m, _ := newServing(t, "a")
	tried := make(chan struct{}, 100)
	n.change(func() {
		n.always = []string{"a"}
		n.telling = func(context.Context) error { tried <- struct{}{}; return errors.New("connection refused") }
	})
	b := n.follow(m, "b")[0]
	for range 2 {
		<-tried
	}
	n.eventually("current leads back", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		version, _, err := n.parse("current")
		return err == nil && version == n.version
	})
	if s := n.status(b); s.Failure != "" {
		t.Errorf("b is blamed: %s", s.Failure)
	}
	n.change(func() { n.telling = nil })
	n.served(m, "a b")
}

// The runtime ends a check that takes too long: the pod is to blame for it, and the others go on.
func TestManager_slowCheck_refusesThePod(t *testing.T) {
	t.Parallel()
	n, m, _ := newServing(t, "a")
	n.change(func() {
		n.always = []string{"a"}
		n.checking = func(context.Context) error {
			text, err := os.ReadFile(filepath.Join(n.root, "edge", "files", "next", configFile))
			if err == nil && strings.Contains(string(text), "ns-b") {
				err = context.DeadlineExceeded
			}
			return err
		}
	})
	b := n.follow(m, "b", "c")[0]
	n.served(m, "a c")
	n.eventually("the pod says why", func() bool { return strings.Contains(n.status(b).Failure, "did not end within") })
}

// The runtime says that the proxy runs although its process has ended: nobody is served by it any more.
func TestManager_proxyEndedAndListed_servesNoPod(t *testing.T) {
	t.Parallel()
	n, m, pods := newServing(t, "a")
	a := pods[0]
	n.eventually("its end is waited for", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.waits > 0 })
	n.change(func() {
		close(n.ended)
		n.ended = make(chan struct{})
	})
	began := time.Now()
	n.unserved(m, a)
	n.eventually("the pod says that its proxy is not ready", func() bool { return !n.status(a).Ready })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it was noticed after %s", took)
	}
	m.Notify("edge")
	pause(t.Context(), time.Second)
	if ok, _ := m.Serves("edge", a); ok {
		t.Error("it is said to serve again")
	}
}

// What could only be written in part is not there, and next leads where it did.
func TestManager_filesNotWritable_podsStay(t *testing.T) {
	t.Parallel()
	d := directory{t.TempDir()}
	if err := d.prepare(); err != nil {
		t.Fatal(err)
	}
	first, err := d.write(map[string]string{"a": "1"}, int64(os.Getgid()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.write(map[string]string{"a": "2", "not/there": "3"}, int64(os.Getgid())); err == nil {
		t.Error("no error")
	}
	entries, err := os.ReadDir(d.files())
	if err != nil || len(entries) != 2 || d.target(nextLink) != first {
		t.Errorf("%v, next is %s, error %v", entries, d.target(nextLink), err)
	}
	if err := d.point(currentLink, "v-9"); err != nil || d.target(currentLink) != "" {
		t.Errorf("current is %q, which is not there; error %v", d.target(currentLink), err)
	}
}

// The proxy ends in the middle of each step, and starts anew.
func TestManager_proxyEndsDuringReload_comesBack(t *testing.T) {
	t.Parallel()
	for name, hook := range map[string]func(n *fakeNode, f func(context.Context) error){
		"while it checks":  func(n *fakeNode, f func(context.Context) error) { n.checking = f },
		"while it is told": func(n *fakeNode, f func(context.Context) error) { n.telling = f },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, m, _ := newServing(t, "a")
			n.change(func() {
				n.always = []string{"a"}
				hook(n, func(context.Context) error {
					n.change(func() { n.checking, n.telling = nil, nil })
					n.stopProxy()
					if !n.startProxy() {
						t.Error("the proxy does not start")
					}
					return nil
				})
			})
			b := n.follow(m, "b")[0]
			n.served(m, "a b")
			if s := n.status(b); s.Failure != "" {
				t.Errorf("b is blamed: %s", s.Failure)
			}
		})
	}
}

// The file system in memory has no room left: the proxy goes on with what it has, and what has changed is done once there is room again.
func TestManager_noRoomForFiles_podsStay(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		kerneltest.SkipOrFail(t, "mounts need root; this is uid %d", os.Geteuid())
	}
	n := newNode(t)
	if err := unix.Mount("tmpfs", n.root, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(n.root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	n.startProxy()
	m := n.agent()
	a := n.follow(m, "a")[0]
	n.served(m, "a")
	n.change(func() { n.always = []string{"a"} })
	fill := filepath.Join(n.root, "full")
	if err := os.WriteFile(fill, make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("full: %v", err)
	}
	b := n.follow(m, "b")[0]
	pause(t.Context(), 2500*time.Millisecond)
	n.served(m, "a")
	n.stop()
	m = n.agent() // another one can begin
	m.Follow(a, "edge")
	m.Follow(b, "edge")
	n.served(m, "a")
	n.stopProxy()
	if !n.startProxy() {
		t.Error("the proxy does not start with what is there")
	}
	n.served(m, "a")
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	n.served(m, "a b")
}
