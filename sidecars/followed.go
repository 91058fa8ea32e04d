package sidecars

import (
	"strings"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/printable"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/profile"
)

// The pause before a proxy is started again grows from firstPause to lastPause. It is firstPause again after a proxy was ready for calmTime.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 10 * time.Second
	calmTime   = time.Minute
	// wordsTime is how long after a proxy's end its log is read again: the runtime may write the last lines after it has said that the proxy
	// has ended.
	wordsTime = 5 * time.Second
)

const listFor = time.Second

// listed is the runtime's last list of a pod's proxies. Each step makes a new one, except while the agent only waits for a new proxy to be ready:
// then a list is used for listFor. All changes meanwhile are the agent's own, or ends of processes, of which it is told.
type listed struct {
	containers []sidecar.Container
	at         time.Time
	waits      bool // nothing was done since, and a proxy is waited for
}

// followed is what is remembered of a sandbox. One worker at a time has it: the queue hands out a key once.
type followed struct {
	sandbox podnet.Sandbox    // Manager.mu protects it
	since   time.Time         // when it was first seen
	profile string            // the pod's choice; Manager.mu protects it
	over    time.Time         // when its application ended while another agent worked; Manager.mu protects it
	answers map[string]answer // by container ID
	replies []probe.Reply     // that no step has heard yet; Manager.mu protects them
	list    listed
	ends    map[string]seenEnd // that no step has learned of yet, by container ID; Manager.mu protects it
	epoch   uint32             // the lowest that was not used yet

	failures int // in a row
	failed   time.Time
	restarts int32
	why      string // of the last failure
	// bare is why without the last lines of the proxy's log. log is the path of that log, or "" once it is not read again. last is the proxy of
	// which the runtime has not told yet how it ended, or "".
	bare, log, last string
	// noHandover is the hash of the profile's version that cannot take over from what runs, so that this is ended first.
	noHandover string
	upgraded   time.Time
	// bad is the profile's version in whose time turns have failed, so many in a row, the last one at badAt.
	bad     string
	badAt   time.Time
	badTurn int
	// instead is the hash of the profile's version that the last proxy was not started from although it was the present one, or "". goodStarts
	// counts such starts since a proxy of its version was ready.
	instead    string
	goodStarts int

	renewed time.Time // when the secrets were checked last
	stale   string    // why a secret is not up to date, or ""
	unmoved string    // why an upgrade may lose connections, or ""

	health Health // how the proxy was after the last step; Manager.mu protects it
	// met reports whether a step has been taken. starts reports whether that found no proxy, and none has been ready since.
	met, starts bool
}

// answer is what is known of a running proxy.
type answer struct {
	epoch  uint32
	hash   string    // of the profile's version that it is of
	under  string    // hash of the profile's present version when it was made, as far as that is known
	seen   time.Time // since when this agent knows the container
	found  bool      // this agent has not made it
	probes probe.Results
	// watched reports whether its end is waited for.
	watched bool
	// gone is when this agent learned that its process has ended; zero: it has not. sure reports whether the kernel has said so, and untold whether
	// the runtime has not told it yet, or how it has ended.
	gone         time.Time
	sure, untold bool
	// ended reports whether its end was noted, well whether that was with exit code 0, and stopped whether this agent has ended it.
	ended, well, stopped bool
}

func newFollowed(s podnet.Sandbox) *followed {
	return &followed{sandbox: s, since: time.Now(), answers: map[string]answer{}, ends: map[string]seenEnd{}}
}

// fail notes a proxy that could not be started, or has ended. in is the version of the profile whose turn this has ended, or nil: the next start
// of a proxy that the pod needs does not wait for a failed upgrade.
func (f *followed) fail(now time.Time, why string, in *profile.Version) {
	f.failed, f.why, f.bare, f.log, f.last = now, strings.Clone(printable.Clip(why, v1alpha1.MaxMessage)), "", "", ""
	switch {
	case in == nil:
		f.failures++
	case in.Hash == f.bad:
		f.badTurn, f.badAt = f.badTurn+1, now
	default:
		f.bad, f.badTurn, f.badAt = in.Hash, 1, now
	}
}

// started notes a start of a version of the profile, whose present one may be another.
func (f *followed) started(version, present *profile.Version) {
	if version == present {
		f.instead, f.goodStarts = "", 0
		return
	}
	f.instead = present.Hash
	f.goodStarts++
}

// retryAt returns when the next proxy may be started: the pause since the failure grows with each one in a row.
func (f *followed) retryAt() time.Time { return f.failed.Add(pauseAt(f.failures)) }

func pauseAt(failures int) time.Duration {
	const doublings = 8 // to more than lastPause
	return min(firstPause<<min(max(failures-1, 0), doublings), lastPause)
}

// meet remembers the containers that this agent sees for the first time.
func (f *followed) meet(there []sidecar.Container, now time.Time) {
	if !f.met {
		f.met, f.starts = true, len(there) == 0
	}
	for _, c := range there {
		if _, known := f.answers[c.ID]; !known {
			f.answers[c.ID] = answer{epoch: c.Epoch, hash: versionOf(c), under: versionOf(c), seen: now, found: true}
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
