package nri

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"

	"istio-pod-network-controller/internal/podnet"
)

func TestNewChecksItsConfiguration(t *testing.T) {
	for _, wrong := range []Config{{}, {Handler: &fakeHandler{}, Index: "x1"}, {Handler: &fakeHandler{}, Index: "123"}, {Handler: &fakeHandler{}, Name: "a/b"}} {
		if _, err := New(wrong); err == nil {
			t.Errorf("%+v is accepted", wrong)
		}
	}
	e, err := New(Config{Handler: &fakeHandler{}})
	if err != nil || e.config.Socket != DefaultSocket || e.config.Name != DefaultName || e.config.Index != DefaultIndex {
		t.Errorf("%+v, %v", e, err)
	}
}

// Without a socket, or with one that a dead process left behind, the runtime offers no NRI. That is a fault only where NRI is required.
func TestTheHookSaysWhetherItIsUp(t *testing.T) {
	for name, c := range map[string]struct {
		socket   func(t *testing.T, path string)
		required bool
		offered  bool
		fault    string
	}{
		"no socket":                          {},
		"no socket, but required":            {required: true, fault: "nobody listens at"},
		"a stale socket":                     {socket: staleSocket},
		"a stale socket, but required":       {socket: staleSocket, required: true, fault: "nobody listens at"},
		"somebody listens and does not call": {socket: func(t *testing.T, path string) { t.Helper(); listen(t, path) }, offered: true, fault: "does not call us"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(socketDir(t), "nri.sock")
			if c.socket != nil {
				c.socket(t, path)
			}
			e := start(t, Config{Socket: path, Required: c.required})
			within(t, "an attempt", func() bool { _, checked := e.Offered(); return checked })
			if offered, _ := e.Offered(); offered != c.offered {
				t.Errorf("offered: %v", offered)
			}
			err := e.Check(t.Context())
			if (err != nil) != (c.fault != "") || err != nil && !strings.Contains(err.Error(), c.fault) {
				t.Errorf("error %v, want %q", err, c.fault)
			}
			if err := e.Live(t.Context()); err != nil {
				t.Errorf("not live: %v", err)
			}
		})
	}
}

// Before the first attempt it is unknown whether the runtime offers NRI. The startup taint must stay until then.
func TestCheckFailsBeforeTheFirstAttempt(t *testing.T) {
	e, err := New(Config{Handler: &fakeHandler{}, Socket: "/nonexistent/nri.sock"})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Check(t.Context()); err == nil {
		t.Error("Check succeeded before the first attempt to connect")
	}
}

func staleSocket(t *testing.T, path string) {
	t.Helper()
	l := listen(t, path)
	l.SetUnlinkOnClose(false)
	_ = l.Close()
}

// A runtime that restarts makes a new socket file, whether or not it removed the old one. It is connected to at once, however long the
// runtime was away.
func TestTheRuntimesReturnIsSeenAtOnce(t *testing.T) {
	for name, leavesSocket := range map[string]bool{"the socket goes with the runtime": false, "the runtime leaves its socket behind": true} {
		t.Run(name, func(t *testing.T) {
			e := start(t, Config{})
			l := listen(t, e.socket)
			l.SetUnlinkOnClose(!leavesSocket)
			r := accept(t, l)
			r.configure(t, &api.ConfigureRequest{})
			within(t, "connected", e.Connected)
			_ = l.Close()
			_ = r.conn.Close()
			within(t, "the loss is seen", func() bool { return !e.Connected() })
			within(t, "it is no longer offered", func() bool { offered, _ := e.Offered(); return !offered })
			// By now the next attempt on the same file would be seconds away.
			<-time.After(4 * time.Second)
			_ = os.Remove(e.socket)
			again := listen(t, e.socket)
			began := time.Now()
			accept(t, again)
			took := time.Since(began)
			t.Logf("back after %s", took)
			if took > time.Second {
				t.Errorf("back after %s", took)
			}
		})
	}
}

func TestTheWaitGrowsForOneFileOnly(t *testing.T) {
	var b backOff
	one, two := socketFile{inode: 1}, socketFile{inode: 2}
	for _, want := range []time.Duration{firstWait, 2 * firstWait, 4 * firstWait} {
		if b.next(one); b.wait != want {
			t.Errorf("wait %s, want %s", b.wait, want)
		}
	}
	for range 20 {
		b.next(one)
	}
	if b.wait != lastWait {
		t.Errorf("wait %s, want %s", b.wait, lastWait)
	}
	if b.next(two); b.wait != firstWait {
		t.Errorf("another file: wait %s, want %s", b.wait, firstWait)
	}
}

// If the runtime dies between our registration and its Configure, the stub alone would wait for ever.
func TestARuntimeThatDiesDuringRegistrationIsGivenUp(t *testing.T) {
	e := start(t, Config{})
	l := listen(t, e.socket)
	for range 3 {
		r := accept(t, l)
		r.answer <- nil
		<-time.After(50 * time.Millisecond) // the answer is there
		_ = r.conn.Close()
	}
	began := time.Now()
	accept(t, l).configure(t, &api.ConfigureRequest{})
	within(t, "connected", e.Connected)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("connected after %s", took)
	}
	within(t, "no start is left waiting", func() bool {
		stacks := make([]byte, 1<<20)
		return !strings.Contains(string(stacks[:goruntime.Stack(stacks, true)]), "stub.(*stub).Start(")
	})
}

// A connection that the runtime accepts and does not answer is closed after a while. After minutes of that the agent is not live.
func TestASilentRuntimeIsGivenUpAndFailsLiveAfterMinutes(t *testing.T) {
	e := startWithin(t, Config{}, 200*time.Millisecond)
	l := listen(t, e.socket)
	for range 2 {
		accept(t, l).answer <- nil // it registers us, and never configures us
	}
	e.mu.Lock()
	since := e.silentSince
	e.silentSince = e.silentSince.Add(-maxSilence)
	e.mu.Unlock()
	if since.IsZero() {
		t.Fatal("the silence is not noted")
	}
	if err := e.Live(t.Context()); err == nil || !strings.Contains(err.Error(), "answered none") {
		t.Errorf("live after minutes of silence: %v", err)
	}
	accept(t, l).configure(t, &api.ConfigureRequest{})
	within(t, "connected", e.Connected)
	if err := e.Live(t.Context()); err != nil {
		t.Errorf("connected, and not live: %v", err)
	}
	e.stop()
}

func TestWhatEndsSilence(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		still bool
	}{
		"a runtime that does not answer": {errSilent, true},
		"one that does not accept":       {&net.OpError{Err: os.ErrDeadlineExceeded}, true},
		"one that refuses the plugin":    {errors.New("plugin refused"), false},
		"one that closes the connection": {errLost, false},
		"nobody listens":                 {os.ErrNotExist, false},
	} {
		e := &Hook{}
		e.noteAccepted()
		e.noteEnded(c.err)
		if still := !e.silentSince.IsZero(); still != c.still {
			t.Errorf("%s: silent %v, want %v", name, still, c.still)
		}
	}
}

// A call is stuck after twice the runtime's limit. One that is merely late is not.
func TestLiveFailsAtTwiceTheLimitOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &stuckHandler{free: make(chan struct{})}
		e, err := New(Config{Handler: h})
		if err != nil {
			t.Fatal(err)
		}
		p := newPlugin(e.config, logr.Discard())
		e.plugin.Store(p)
		if err := create(t, p, event(nil)); !errors.Is(err, errLate) {
			t.Errorf("error %v", err)
		}
		if err := e.Live(t.Context()); err != nil {
			t.Errorf("late is not stuck: %v", err)
		}
		<-time.After(api.DefaultPluginRequestTimeout)
		if err := e.Live(t.Context()); err != nil {
			t.Errorf("below twice the limit: %v", err)
		}
		<-time.After(api.DefaultPluginRequestTimeout)
		if err := e.Live(t.Context()); err == nil {
			t.Error("a stuck call is not reported")
		}
		close(h.free)
		synctest.Wait()
		if err := e.Live(t.Context()); err != nil {
			t.Errorf("it has ended: %v", err)
		}
	})
}

// The end does not wait for a runtime that does not answer.
func TestTheEndDoesNotWaitForASilentRuntime(t *testing.T) {
	e := start(t, Config{})
	accept(t, listen(t, e.socket))
	began := time.Now()
	e.stop()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the end took %s", took)
	}
}

// While the agent ends, it answers as before until there is a gap between the runtime's calls.
func TestCallsAreAnsweredWhileTheAgentEnds(t *testing.T) {
	h := &interruptibleHandler{entered: make(chan struct{}, 1), free: make(chan struct{})}
	e := start(t, Config{Handler: h})
	r := accept(t, listen(t, e.socket))
	r.configure(t, &api.ConfigureRequest{})
	within(t, "connected", e.Connected)
	first, stopped := make(chan error, 1), make(chan struct{})
	go func() { first <- r.ask(t, event(nil)) }()
	<-h.entered
	go func() { defer close(stopped); e.stop() }()
	<-time.After(2 * quietGap) // the end is under way
	close(h.free)
	if err := <-first; err != nil {
		t.Errorf("a call at the end is refused: %v", err)
	}
	<-stopped
	if e.Connected() {
		t.Error("connected after the end")
	}
}

// interruptibleHandler returns when its context ends.
type interruptibleHandler struct {
	entered, free chan struct{}
}

func (h *interruptibleHandler) Ensure(ctx context.Context, _ podnet.Sandbox) (bool, error) {
	h.entered <- struct{}{}
	select {
	case <-h.free:
		return true, ctx.Err()
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// stuckHandler ignores its context.
type stuckHandler struct {
	free chan struct{}
}

func (h *stuckHandler) Ensure(context.Context, podnet.Sandbox) (bool, error) {
	<-h.free
	return true, nil
}
