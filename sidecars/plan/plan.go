// Package plan compares the proxies that a sandbox should have with its containers.
package plan

import (
	"cmp"
	"slices"
	"time"

	"istio-pod-network-controller/internal/sidecar"
)

// Proxy is a container of ours in a sandbox, as it was observed.
type Proxy struct {
	ID    string
	Epoch uint32
	State sidecar.State
	// Hash identifies what it was made from: see Desired.
	Hash string
	// Since is when this agent first saw it.
	Since time.Time
	// Asked reports whether its readiness is known, and Ready whether it has ever answered. Ready stays true when it stops answering:
	// only a new proxy that never becomes ready is given up.
	Asked, Ready bool
	// DrainedAt is when it was told to finish its connections; zero if it was not.
	DrainedAt time.Time
	// Orphan reports whether the proxy that it takes over from ended before this one was ready, so that this one never becomes ready.
	Orphan bool
	// Stays reports whether its container stays once it has ended: it says that none is to be started again, or the runtime does not know of the end
	// yet.
	Stays bool
	// Hung reports whether it was ready, and has to be replaced, since it no longer works.
	Hung bool
	// Succeeded reports whether a newer proxy took its listeners, and has ended since: it takes no connections any more.
	Succeeded bool
}

// Desired is what should run in a sandbox.
type Desired struct {
	// Wanted reports whether the pod has a proxy. Without it nothing is started, and what runs is ended unless Keep is true.
	Wanted, Keep bool
	// Hash identifies everything that a new proxy is made from.
	Hash string
	// MaxRunning is how many proxies may run at once, draining ones included. 1 means that a new proxy cannot take over from a running one,
	// which is ended first.
	MaxRunning int
	// Upgrade reports whether a proxy of another hash may be replaced now.
	Upgrade bool
	// Slots is how many slots there are, of which proxies that run at once have different ones; 0 if they have none.
	Slots uint32
	// HotRestart reports whether proxies take over from each other in Envoy's way: a new one tells the old one to drain once it is ready,
	// and ends it at DrainLimit. A new proxy that is not ready is killed: asked to end, it would end the old one, too.
	HotRestart bool
	// StartLimit is how long a new proxy may take until it is ready, DrainLimit how long an old one may finish its connections.
	StartLimit, DrainLimit time.Duration
	// Epoch is the lowest that a new proxy may have: those of proxies that were removed are not used again.
	Epoch uint32
	// RetryAt is when the next proxy may be started; zero is at once.
	RetryAt time.Time
}

// successorGrace is how long after DrainLimit the agent ends a proxy that its successor should have ended.
const successorGrace = 5 * time.Second

// Verb is what an Action does.
type Verb string

// The verbs. Each can be repeated without harm.
const (
	Start  Verb = "start"  // make a container and start it
	Drain  Verb = "drain"  // tell a proxy to finish its connections and end, unless its successor has; note it in any case
	Stop   Verb = "stop"   // end a proxy
	Remove Verb = "remove" // remove a container that does not run
)

// Action is one step towards what is desired.
type Action struct {
	Verb  Verb
	ID    string // of the container; "" for Start
	Epoch uint32
	From  string // for Start: the ID of the proxy that it takes over from, or ""
	Kill  bool   // for Stop: do not ask it first
	Why   string // for Stop: said to the pod's owner
}

// Decision is what to do about one sandbox now.
type Decision struct {
	Actions []Action
	// Serving is the ID of the proxy that takes the pod's connections, or "".
	Serving string
	// Awaited are the IDs of new proxies that are not ready yet.
	Awaited []string
	// Again is when to decide again if nothing happens before; zero is never.
	Again time.Time
}

// Decide compares the desired proxies of a sandbox with its containers. It knows nothing else: an agent that has just started comes to the same
// decision as its predecessor.
//
//   - A container that has ended, or was made and not started, is removed, unless it stays (Stays).
//   - A proxy that was told to drain is left alone until DrainLimit, and then ended. With HotRestart its successor ends it; if it has not
//     by successorGrace after that, the agent does.
//   - Of the others, the newest ready proxy serves. Older ones are drained. With HotRestart the successor has
//     told them already, and this is only noted: also of one whose successor has ended since (Succeeded).
//   - A newer proxy is ended if it cannot become ready, does not within StartLimit, or has another hash and may be upgraded. The serving
//     proxy stays.
//   - If none serves and none is starting, one is started.
//   - If the serving proxy has another hash and may be upgraded, or hangs, a new one takes over from it. A proxy that hangs is
//     ended then, not drained. If there is no room for its successor, it is ended first.
func Decide(d Desired, there []Proxy, now time.Time) (out Decision) {
	running, ended := out.sweep(there)
	defer func() { out.Actions = append(out.Actions, ended...) }() // last: a successor does not wait for it
	if !d.Wanted && !d.Keep {
		for _, p := range running {
			out.end(p, "the pod has no proxy any more") // not drained: its connections do not come here any more
		}
		return out
	}
	live := out.leaveDraining(running, d, now)
	serving := newestReady(live)
	for _, old := range live[:max(serving, 0)] {
		if old.Hung {
			out.end(old, "it hung, and another proxy has taken over")
		} else {
			out.drain(old)
		}
	}
	starting := live[serving+1:]
	for _, p := range starting {
		out.await(p, d, now)
	}
	if serving >= 0 {
		out.Serving = live[serving].ID
	}
	if !d.Wanted || len(starting) > 0 {
		return out
	}
	next := Action{Verb: Start, Epoch: d.Epoch}
	for _, p := range there { // containerd refuses a second container of the same name and epoch
		next.Epoch = max(next.Epoch, p.Epoch+1)
	}
	if d.Slots > 0 && slices.ContainsFunc(running, func(p Proxy) bool { return p.Epoch%d.Slots == next.Epoch%d.Slots }) {
		next.Epoch++
	}
	switch {
	case serving < 0:
		out.start(next, d.RetryAt, now)
	case live[serving].Hung && len(running) >= d.MaxRunning:
		out.start(stopOf(live[serving], "it hangs"), d.RetryAt, now)
	case !live[serving].Hung && (live[serving].Hash == d.Hash || !d.Upgrade):
	case d.MaxRunning == 1:
		out.start(stopOf(live[serving], "a new version replaces it"), d.RetryAt, now)
	case len(running) < d.MaxRunning:
		next.From = out.Serving
		out.start(next, d.RetryAt, now)
	}
	return out
}

// sweep returns the running containers, oldest first, and the removal of ended ones. Containers that were not started are removed at once:
// the runtime may be starting one for an agent that has been killed.
func (d *Decision) sweep(there []Proxy) (running []Proxy, ended []Action) {
	for _, p := range there {
		removal := Action{Verb: Remove, ID: p.ID, Epoch: p.Epoch}
		switch {
		case p.State == sidecar.Running:
			running = append(running, p)
		case p.State == sidecar.Created:
			d.Actions = append(d.Actions, removal)
		case !p.Stays:
			ended = append(ended, removal)
		}
	}
	slices.SortFunc(running, func(a, b Proxy) int { return cmp.Compare(a.Epoch, b.Epoch) })
	return running, ended
}

// leaveDraining returns the proxies that were not told to drain, and ends those whose time to do so is over.
func (d *Decision) leaveDraining(running []Proxy, want Desired, now time.Time) (live []Proxy) {
	limit := want.DrainLimit
	if want.HotRestart {
		limit += successorGrace
	}
	for _, p := range running {
		end := p.DrainedAt.Add(limit)
		switch {
		case p.DrainedAt.IsZero() && p.Succeeded:
			d.drain(p)
		case p.DrainedAt.IsZero():
			live = append(live, p)
		case now.Before(end):
			d.AgainAt(end)
		default:
			d.end(p, "its connections did not end within "+limit.String())
		}
	}
	return live
}

// newestReady returns the index of the newest proxy that is ready, or -1.
func newestReady(live []Proxy) int {
	for i, p := range slices.Backward(live) {
		if p.Ready {
			return i
		}
	}
	return -1
}

// await leaves a new proxy its time to become ready, unless a version that can be started instead is known.
func (d *Decision) await(p Proxy, want Desired, now time.Time) {
	end, why := p.Since.Add(want.StartLimit), ""
	switch {
	case p.Orphan:
		why = "the proxy that it was to take over from has ended"
	case p.Asked && !now.Before(end):
		why = "it was not ready within " + want.StartLimit.String()
	case p.Asked && want.Wanted && want.Upgrade && p.Hash != want.Hash:
		why = "it was not ready yet, and a new version replaces it"
	default:
		d.Awaited = append(d.Awaited, p.ID)
		d.AgainAt(end)
		return
	}
	d.Actions = append(d.Actions, Action{Verb: Stop, ID: p.ID, Epoch: p.Epoch, Kill: want.HotRestart, Why: why})
}

func (d *Decision) drain(p Proxy) {
	d.Actions = append(d.Actions, Action{Verb: Drain, ID: p.ID, Epoch: p.Epoch})
}

func (d *Decision) end(p Proxy, why string) { d.Actions = append(d.Actions, stopOf(p, why)) }

func stopOf(p Proxy, why string) Action {
	return Action{Verb: Stop, ID: p.ID, Epoch: p.Epoch, Why: why}
}

// start starts a proxy, or ends the one in whose place that is, not before at.
func (d *Decision) start(a Action, at, now time.Time) {
	if now.Before(at) {
		d.AgainAt(at)
		return
	}
	d.Actions = append(d.Actions, a)
}

// AgainAt has it decided again at a time at the latest.
func (d *Decision) AgainAt(at time.Time) {
	if d.Again.IsZero() || at.Before(d.Again) {
		d.Again = at
	}
}
