package nri

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"
)

// A connection that is closed within a call lets the pod through; an agent that never ends is killed within a call, too.
func TestWhatTheEndWaitsFor(t *testing.T) {
	for name, c := range map[string]struct {
		call, gap time.Duration // of a runtime that calls again and again
		min, max  time.Duration
	}{
		"long gaps":                    {call: 5 * time.Millisecond, gap: 2 * pause, min: pause, max: 2 * pause},
		"short gaps only":              {call: 5 * time.Millisecond, gap: pause / 2, min: lastCalls, max: lastCalls + 2*pause},
		"a call that does not end":     {call: time.Hour, min: lastCalls + api.DefaultPluginRequestTimeout, max: lastCalls + api.DefaultPluginRequestTimeout + pause},
		"a runtime that calls no more": {gap: time.Hour, max: 2 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, _ := newTestPlugin(nil)
				stop := make(chan struct{})
				go callAgain(p, c.call, c.gap, stop)
				synctest.Wait()
				began := time.Now()
				p.awaitQuiet()
				took := time.Since(began)
				p.mu.Lock()
				calls := p.calls
				p.mu.Unlock()
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
			p.begin()
			stopped = waited(call, stop)
			p.end()
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

// A connection that ends late must not hide the one that has come after it.
func TestTheEndOfAnOldConnectionLeavesTheNewOne(t *testing.T) {
	e := &Entrance{}
	old, young := &session{entrance: e}, &session{entrance: e}
	e.connection.Store(young)
	if old.closed(); !e.Connected() {
		t.Error("the old connection's end ended the new one")
	}
	if young.closed(); e.Connected() {
		t.Error("connected by a connection that has ended")
	}
}
