package nri

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"istio-pod-network-controller/internal/podnet"
)

// The runtime starts the pod if the plugin is too slow, so the refusal has to come before its limit.
func TestCreateContainer_handlerSlow_answersBeforeTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := newTestPlugin(nil)
		h.slow = true
		p.calls.setLimit(func() time.Duration { return time.Second })
		start := time.Now()
		err := create(t, p, event(nil))
		if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > 950*time.Millisecond {
			t.Errorf("error %v after %s", err, took)
		}
	})
}

// If the connection is closed during a call, the runtime starts the pod.
func TestAwaitQuiet_callUnderWay_waits(t *testing.T) {
	p, h := newTestPlugin(nil)
	h.slow = true
	p.calls.setLimit(func() time.Duration { return 300 * time.Millisecond })
	answered := make(chan time.Time, 1)
	go func() {
		_ = p.RunPodSandbox(t.Context(), event(nil))
		answered <- time.Now()
	}()
	for busy := false; !busy; {
		p.calls.mu.Lock()
		busy = p.calls.open == 1
		p.calls.mu.Unlock()
	}
	p.calls.awaitQuiet()
	quiet := time.Now()
	if at := <-answered; quiet.Sub(at) < quietGap/2 {
		t.Errorf("the end came %s after the answer, want %s", quiet.Sub(at), quietGap)
	}
}

// badHandler panics, or does not return before it is freed.
type badHandler struct {
	panics bool
	free   chan struct{}
}

func (h *badHandler) Ensure(context.Context, podnet.Sandbox) (bool, error) {
	if h.panics {
		panic("decoder") //nolint:forbidigo // what the plugin is to survive
	}
	<-h.free
	return false, nil
}

// Whatever the handler does, the runtime gets an answer in time, the pod is refused, and it is counted.
func TestCreateContainer_handlerPanicsOrHangs_refuses(t *testing.T) {
	for name, c := range map[string]struct {
		panics, failOpen bool
		want             Outcome
		words            string
	}{
		"it panics":                    {panics: true, want: Panicked, words: "failed within"},
		"it does not come back":        {want: Late, words: "in time"},
		"it panics, and we fail open":  {panics: true, failOpen: true, want: Panicked},
		"it is late, and we fail open": {failOpen: true, want: Late},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got Outcome
				h := &badHandler{panics: c.panics, free: make(chan struct{})}
				defer close(h.free)
				p, _ := newTestPlugin(func(config *Config) {
					config.Handler, config.FailOpen = h, c.failOpen
					config.Observe = func(_ string, o Outcome, _ time.Duration) { got = o }
				})
				p.calls.setLimit(func() time.Duration { return time.Second })
				began := time.Now()
				err := create(t, p, event(nil))
				if took := time.Since(began); took >= time.Second {
					t.Errorf("answered after %s", took)
				}
				if (err == nil) != c.failOpen || err != nil && !strings.Contains(err.Error(), c.words) || got != c.want {
					t.Errorf("error %v, outcome %s, want %s", err, got, c.want)
				}
				if c.panics {
					p.queue <- podnet.Sandbox{ID: "1"}
					p.program(t.Context(), <-p.queue)
				}
			})
		})
	}
}
