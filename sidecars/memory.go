package sidecars

import (
	"strings"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/printable"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/istio"
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/profile"
)

// The pause before a proxy is started again grows from firstPause to lastPause. It is firstPause again after a proxy was ready for stableTime.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 10 * time.Second
	stableTime = time.Minute
	// wordsTime is how long after a proxy's end its log is read again: the runtime may write the last lines after it has said that the proxy
	// has ended.
	wordsTime = 5 * time.Second
)

// memory holds the facts about a sandbox that outlast a reconcile. It may be lost at any time. A reconcile replaces it: it never writes to a map of
// the last one.
type memory struct {
	since time.Time // when the sandbox was first seen
	// looked reports whether it was reconciled. starts reports whether that found no proxy, and none has been ready since.
	looked, starts bool
	list           listed
	proxies        map[string]proxy // by container ID
	epoch          uint32           // the lowest that was not used yet
	failures       failures
	upgrades       upgrades
	restarts       int32

	secretsAt time.Time // when the secrets were checked last
	stale     string    // why a secret is not up to date, or ""
	unmoved   string    // why an upgrade may lose connections, or ""
	outdated  string    // why the last proxy was not computed from what its control plane has, or ""
	// rulesSince is since when actions wait for the rules to lead where they have to; zero: none does.
	rulesSince time.Time
}

// listed is the runtime's last list of a pod's proxies. Each reconcile makes a new one, except while the agent only waits for a new proxy to be
// ready: then a list is used for listFor. All other changes cause a new list: the agent makes them itself, or is told of the end of a process.
type listed struct {
	containers []sidecar.Container
	at         time.Time
	waits      bool // nothing was done since, and a proxy is waited for
}

const listFor = time.Second

// failures are proxies that could not be started, or have ended.
type failures struct {
	inARow int
	lastAt time.Time
	why    string // of the last one
	// whyOnly is why without the last lines of the proxy's log. logPath is the path of that log, or "" once it is not read again. unreported is the
	// container of which the runtime has not told yet how it ended, or "".
	whyOnly, logPath, unreported string
}

// upgrades has the results of versions of the profile in the sandbox.
type upgrades struct {
	lastAt time.Time // when a new version took over
	// noHandover is the hash of the version that cannot take over from what runs, so that this is ended first.
	noHandover string
	// failedHash is the version in whose time upgrades have failed, so many in a row, the last one at failedAt.
	failedHash   string
	failedAt     time.Time
	failedInARow int
	// insteadOf is the hash of the version that the last proxy was not started from although it was the present one, or "". standIns counts such
	// starts since a proxy of its version was ready.
	insteadOf string
	standIns  int
}

// proxy holds the facts about a container.
type proxy struct {
	epoch uint32
	hash  string // of the profile's version that it is of
	// madeUnder is the hash of the profile's present version when it was made, as far as that is known.
	madeUnder string
	seenSince time.Time // since when this agent knows it
	found     bool      // this agent has not made it
	probes    probe.Results
	sources   *istio.Sources // what this agent computed Istio's proxy from, until it is ready
	watched   bool           // its end is waited for
	exit      exit
	stopped   bool // this agent has ended it
}

// exit describes a proxy's end.
type exit struct {
	// at is when this agent learned that its process has ended; zero: it has not. certain reports whether the kernel has said so, and unreported whether
	// the runtime has not told it yet, or how it has ended.
	at                  time.Time
	certain, unreported bool
	// noted reports whether its end was noted, and succeeded whether that was with exit code 0.
	noted, succeeded bool
}

// afterFailure returns the memory after a proxy could not be started, or has ended. in is the version of the profile whose upgrade this has ended, or
// nil: the next start of a proxy that the pod needs does not wait for a failed upgrade.
func (m memory) afterFailure(at time.Time, why string, in *profile.Version) memory {
	inARow, u := m.failures.inARow, m.upgrades
	switch {
	case in == nil:
		inARow++
	case in.Hash == u.failedHash:
		u.failedInARow, u.failedAt = u.failedInARow+1, at
	default:
		u.failedHash, u.failedInARow, u.failedAt = in.Hash, 1, at
	}
	m.failures = failures{inARow: inARow, lastAt: at, why: strings.Clone(printable.Clip(why, v1alpha1.MaxMessage))}
	m.upgrades = u
	return m
}

// afterStart returns what is known of versions after a start of one, while another may be the present one.
func (u upgrades) afterStart(version, present *profile.Version) upgrades {
	if version == present {
		u.insteadOf, u.standIns = "", 0
		return u
	}
	u.insteadOf = present.Hash
	u.standIns++
	return u
}

// retryAt returns when the next proxy may be started: the pause since the failure grows with each one in a row.
func (f failures) retryAt() time.Time { return f.lastAt.Add(backoff(f.inARow)) }

func backoff(failures int) time.Duration {
	const doublings = 8 // to more than lastPause
	return min(firstPause<<min(max(failures-1, 0), doublings), lastPause)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
