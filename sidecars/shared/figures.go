package shared

import (
	"context"
	"errors"
	"maps"
	"time"

	"istio-pod-network-controller/sidecars"
)

// Result is what became of a configuration that the agent has tried.
type Result string

// The results. A configuration from which pods were left out counts as refused, and once more for what became of the rest.
const (
	Applied     Result = "applied"     // the proxy answers its version
	Refused     Result = "refused"     // the templates or the proxy's check did not pass it
	Unconfirmed Result = "unconfirmed" // the proxy did not answer its version in time
	Failed      Result = "failed"      // it could not be written, or the runtime did not pass the check or the signal on
)

// Changes sums up how long changes of pods took until the proxy had them.
type Changes struct {
	Count uint64
	Sum   time.Duration
	// Within counts those that took at most so long.
	Within map[time.Duration]uint64
}

// shortestChange and longestChange are the first and the last bound of Changes.Within. Each bound is twice the one before.
const (
	shortestChange = 100 * time.Millisecond
	longestChange  = shortestChange << 10 // 102 s
)

func (c *Changes) add(took time.Duration) {
	c.Count++
	c.Sum += took
	for bound := range c.Within {
		if took <= bound {
			c.Within[bound]++
		}
	}
}

// newFigures returns those of a proxy of which nothing is known: with all results and all bounds.
func newFigures() Figures {
	out := Figures{Reloads: map[Result]uint64{Applied: 0, Refused: 0, Unconfirmed: 0, Failed: 0}, Changes: Changes{Within: map[time.Duration]uint64{}}}
	for bound := shortestChange; bound <= longestChange; bound *= 2 {
		out.Changes.Within[bound] = 0
	}
	return out
}

// Figures are how a profile's proxy and its pods are on this node.
type Figures struct {
	// Served are the pods that the proxy serves. Of the others, Refused need somebody to change them or the profile first, and Waiting do not.
	Served, Refused, Waiting int
	// Running reports whether the proxy's container runs. Newest reports whether the proxy has confirmed the profile's present version, without
	// pods that have left.
	Running, Newest bool
	// Reloads counts configurations by what became of them, with zeros.
	Reloads map[Result]uint64
	Changes Changes
}

// Figures returns those of each profile that has pods on this node, or whose proxy runs there.
func (m *Manager) Figures() map[string]Figures {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]Figures{}
	for name, g := range m.groups {
		if f := g.figuresNow(); f.Running || f.Served+f.Refused+f.Waiting > 0 {
			out[name] = f
		}
	}
	return out
}

func (g *group) figuresNow() Figures {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := g.figures
	out.Reloads, out.Changes.Within = maps.Clone(out.Reloads), maps.Clone(out.Changes.Within)
	return out
}

// proxyEnded notes that the proxy has ended: it serves nobody. g.mu is held.
func (g *group) proxyEnded() {
	g.proxy.ended = true
	g.served = nil // a round may be reading it
	f := &g.figures
	f.Waiting, f.Served, f.Running, f.Newest = f.Waiting+f.Served, 0, false, false
}

// measure notes how long a pod's change took that is about to be noted as in force.
func (r *round) measure(p *podNow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.followed[p.key()]; f != nil && !f.since.IsZero() {
		r.figures.Changes.add(time.Since(f.since))
	}
}

// notMeasured leaves out a change of a pod that is refused: how long it takes is up to others.
func (r *round) notMeasured(p *podNow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.followed[p.key()]; f != nil {
		f.since = time.Time{}
	}
}

// count notes what became of the trial. err is why it has ended early, or nil.
func (t *trial) count(ctx context.Context, err error) {
	if t.result == "" && err != nil && !errors.Is(ctx.Err(), context.Canceled) { // the agent ends: the next one goes on
		t.result = Failed
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refused {
		t.figures.Reloads[Refused]++
	}
	if t.result != "" {
		t.figures.Reloads[t.result]++
	}
}

// sumUp counts the round's pods. rec is the configuration that the proxy serves, or nil.
func (r *round) sumUp(rec *record, served map[sidecars.Key]bool) Figures {
	now := Figures{Running: r.seen.there, Newest: rec != nil && !r.foreign && (r.wanted == nil || r.wanted.Hash == rec.Hash)}
	for _, p := range r.pods {
		switch {
		case served[p.key()]:
			now.Served++
			now.Newest = now.Newest && (p.stay || p.join)
		case p.gone || p.choice.Ending || choseElsewhere(p.choice, r.name) || p.choice.Name == "" && p.waits == "":
		case r.statusOf(p, rec, false).Failure != "":
			now.Refused++
		default:
			now.Waiting++
		}
	}
	return now
}
