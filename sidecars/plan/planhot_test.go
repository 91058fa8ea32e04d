package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/internal/sidecar"
)

func orphan(p *Proxy)    { p.Orphan = true }
func succeeded(p *Proxy) { p.Succeeded = true }
func hot(d *Desired)     { d.HotRestart = true }

// An Envoy's successor tells it to drain, and ends it. One that fails leaves it as it is, unless it is asked to end.
func TestDecide_envoys_leaveDrainingToSuccessor(t *testing.T) {
	kill := func(epoch uint32, why string) Action {
		out := stop(epoch, why)
		out.Kill = true
		return out
	}
	changed := wants(hot, func(d *Desired) { d.Hash = "v2" })
	for name, c := range map[string]struct {
		desired Desired
		there   []Proxy
		want    Decision
	}{
		"an Envoy's successor is ready": {
			changed, []Proxy{running(0), running(1, v2)}, Decision{Actions: []Action{drain(0)}, Serving: "b"},
		},
		"an Envoy's successor has not ended it yet": {
			wants(hot), []Proxy{running(0, draining(46*time.Second)), running(1)}, Decision{Serving: "b", Again: now().Add(4 * time.Second)},
		},
		"an Envoy's successor does not end it": {
			wants(hot),
			[]Proxy{running(0, draining(50*time.Second)), running(1)},
			Decision{Actions: []Action{stop(0, "its connections did not end within 50s")}, Serving: "b"},
		},
		"an Envoy's successor hangs: asked to end, it would end the other": {
			changed,
			[]Proxy{running(0), running(1, v2, unready(10*time.Second))},
			Decision{Actions: []Action{kill(1, slow)}, Serving: "a"},
		},
		"an Envoy ends while its successor starts": {
			changed,
			[]Proxy{running(0, state(sidecar.Exited)), running(1, v2, unready(time.Second), orphan)},
			Decision{Actions: []Action{kill(1, "the proxy that it was to take over from has ended"), remove(0)}},
		},
		"an Envoy's successor ended at its start": {
			changed,
			[]Proxy{running(0), running(1, v2, state(sidecar.Exited))},
			Decision{Actions: []Action{start(2, "a"), remove(1)}, Serving: "a"},
		},
		"an Envoy's successor took its listeners and ended": {
			wants(hot),
			[]Proxy{running(0, succeeded), running(1, v2, state(sidecar.Exited))},
			Decision{Actions: []Action{drain(0), start(2, ""), remove(1)}},
		},
		"it drains already": {
			wants(hot), []Proxy{running(0, succeeded, draining(5*time.Second)), running(1)}, Decision{Serving: "b", Again: now().Add(45 * time.Second)},
		},
		"an Envoy is not replaced a second time while the one before drains: it would end that": {
			wants(hot, func(d *Desired) { d.Hash, d.MaxRunning = "v2", 2 }),
			[]Proxy{running(0, draining(5*time.Second)), running(1)},
			Decision{Serving: "b", Again: now().Add(45 * time.Second)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, Decide(c.desired, c.there, now())); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
