package nri

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"
)

// If the connection is closed during a call, the runtime starts the pod; an agent that waits too long is killed, perhaps during a call.
func TestAwaitQuiet(t *testing.T) {
	for name, c := range map[string]struct {
		call, gap time.Duration // of a runtime that calls again and again
		min, max  time.Duration
	}{
		"long gaps":                    {call: 5 * time.Millisecond, gap: 2 * quietGap, min: quietGap, max: 2 * quietGap},
		"short gaps only":              {call: 5 * time.Millisecond, gap: quietGap / 2, min: maxQuietGapWait, max: maxQuietGapWait + 2*quietGap},
		"a call that does not end":     {call: time.Hour, min: maxQuietGapWait + api.DefaultPluginRequestTimeout, max: maxQuietGapWait + api.DefaultPluginRequestTimeout + quietGap},
		"a runtime that does not call": {gap: time.Hour, max: 2 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, _ := newTestPlugin(nil)
				stop := make(chan struct{})
				go callAgain(p, c.call, c.gap, stop)
				synctest.Wait()
				began := time.Now()
				p.calls.awaitQuiet()
				took := time.Since(began)
				p.calls.mu.Lock()
				calls := p.calls.open
				p.calls.mu.Unlock()
				if took < c.min || took > c.max || calls > 0 && c.call < time.Hour {
					t.Errorf("waited %s with %d calls under way, want %s to %s", took, calls, c.min, c.max)
				}
				close(stop)
				synctest.Wait()
			})
		})
	}
}

// callAgain is a runtime that calls, and pauses, until it is stopped.
func callAgain(p *plugin, call, gap time.Duration, stop <-chan struct{}) {
	for stopped := false; !stopped; {
		if call > 0 {
			p.calls.begin()
			stopped = waited(call, stop)
			p.calls.end()
		}
		stopped = stopped || waited(gap, stop)
	}
}

func waited(d time.Duration, stop <-chan struct{}) (stopped bool) {
	select {
	case <-stop:
		return true
	case <-time.After(d):
		return false
	}
}

// The end of an old connection must not hide a newer one.
func TestTheEndOfAnOldConnectionLeavesTheNewOne(t *testing.T) {
	e := &Hook{}
	older, newer := &session{hook: e}, &session{hook: e}
	e.connection.Store(newer)
	if older.closed(); !e.Connected() {
		t.Error("the old connection's end ended the new one")
	}
	if newer.closed(); e.Connected() {
		t.Error("connected though the connection has ended")
	}
}

// A runtime that dies while it tells of its pods has ended the connection before the plugin knows that there was one.
func TestSynchronize_connectionHasEnded_isNotConnected(t *testing.T) {
	p, _ := newTestPlugin(nil)
	s := &session{plugin: p, hook: &Hook{}}
	s.closed()
	if _, err := s.Synchronize(t.Context(), nil, nil); err != nil || s.hook.Connected() {
		t.Errorf("error %v, connected %t", err, s.hook.Connected())
	}
}
