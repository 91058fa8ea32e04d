package sidecars

import (
	"maps"
	"slices"
	"strings"
	"time"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/plan"
	"istio-pod-network-controller/sidecars/profile"
)

// observed is a sandbox as one reconcile has found it: what its pod has chosen, the containers, the notes in its home, and what is known of its
// proxies. It is a value: what is learned makes a new one.
type observed struct {
	key     podnet.Key
	sandbox podnet.Sandbox
	choice  Choice
	home    home.Home
	notes   home.Notes
	// containers are the oldest first. One whose process has ended is Exited, whatever the runtime says. A proxy that has to be replaced
	// although it is of the present version has a hash that ends with outdatedHash.
	containers []sidecar.Container
	proxies    map[string]proxy // by container ID
	versions   versions
}

// versions of the profile that the node knows, beside the present one.
type versions struct {
	// lastGood is the version that worked last on the node, nil if that is the present one, and earlier are versions that worked before.
	lastGood *profile.Version
	earlier  []*profile.Version
	// presentFailed reports whether the present one has failed since.
	presentFailed bool
}

// outdatedHash is added to the hash of a proxy that a new one has to replace, though the profile has not changed.
const outdatedHash = "-outdated"

// versionOf returns the hash of the profile's version that a proxy is of.
func versionOf(c sidecar.Container) string { return strings.TrimSuffix(c.Hash, outdatedHash) }

// with returns the sandbox with what is known of a container's proxy.
func (o observed) with(id string, p proxy) observed {
	proxies := map[string]proxy{}
	maps.Copy(proxies, o.proxies)
	proxies[id] = p
	o.proxies = proxies
	return o
}

// without returns the sandbox without a container's proxy.
func (o observed) without(id string) observed {
	o.proxies = maps.Clone(o.proxies)
	delete(o.proxies, id)
	return o
}

func (o observed) container(id string) *sidecar.Container {
	if i := slices.IndexFunc(o.containers, func(c sidecar.Container) bool { return c.ID == id }); i >= 0 {
		return &o.containers[i]
	}
	return nil
}

func (o observed) drains(epoch uint32) bool { return o.notes.Has(home.Draining, epoch) }

// isAsked reports whether a proxy is asked how it is: it runs, and does not drain.
func (o observed) isAsked(c sidecar.Container) bool {
	return c.State == sidecar.Running && !o.drains(c.Epoch)
}

// isReady reports whether a proxy has been ready, and takes connections.
func (o observed) isReady(c sidecar.Container) bool {
	return o.isAsked(c) && o.proxies[c.ID].probes.WasReady
}

// madeFrom returns the version of the profile with this hash, or the present one if it is not known.
func (o observed) madeFrom(hash string) *profile.Version {
	for _, p := range append(slices.Clone(o.versions.earlier), o.versions.lastGood) {
		if p != nil && hash == p.Hash {
			return p
		}
	}
	return o.choice.Profile
}

// takesOver reports whether a proxy is an Envoy that has not said yet that it serves.
func (o observed) takesOver(c sidecar.Container) bool {
	return c.HotRestart != nil && !o.notes.Has(home.Ready, c.Epoch)
}

// lostSuccessor reports whether an Envoy that serves had a successor, which no longer runs.
func (o observed) lostSuccessor(c sidecar.Container) bool {
	return c.HotRestart != nil && o.isAsked(c) && o.notes.Has(home.Ready, c.Epoch) && o.notes.Has(home.Successor, c.Epoch) && !inLine(o.containers, c, +1)
}

// isOrphan reports whether an Envoy runs that does not serve, and the proxy that it takes over from has ended.
func (o observed) isOrphan(c sidecar.Container) bool {
	return c.State == sidecar.Running && o.takesOver(c) && c.HotRestart.Epoch > 0 && !inLine(o.containers, c, -1)
}

// inLine reports whether the proxy a step before or after an Envoy in its line runs.
func inLine(all []sidecar.Container, c sidecar.Container, step int64) bool {
	return slices.ContainsFunc(all, func(other sidecar.Container) bool {
		return other.State == sidecar.Running && other.HotRestart != nil && other.HotRestart.Line == c.HotRestart.Line &&
			int64(other.HotRestart.Epoch) == int64(c.HotRestart.Epoch)+step
	})
}

// isReplaced reports whether an epoch's proxy has a successor that serves, which ends it.
func (o observed) isReplaced(epoch uint32) bool {
	return o.notes.Has(home.Successor, epoch) && slices.ContainsFunc(o.containers, func(c sidecar.Container) bool {
		return c.State == sidecar.Running && c.Epoch > epoch && o.notes.Has(home.Ready, c.Epoch)
	})
}

// isExpected reports whether a proxy's end is no news: it was noted, the proxy was told to end, or it was to be replaced since it hung.
func (o observed) isExpected(p proxy) bool {
	return !p.probes.HungAt.IsZero() || p.exit.noted || p.stopped || o.drains(p.epoch) || o.notes.Has(home.Telling, p.epoch) || o.isReplaced(p.epoch)
}

// ends is what was read about proxies that have ended without being told to.
type ends struct {
	of map[string]ended // by container ID
	// earlier is the proxy of which the runtime had not told yet how it ended. words are the last lines of the log of the last failed proxy.
	earlier ended
	words   string
	// isNoFailure reports whether the pod, the application or the sandbox ends, so that the end of a proxy is no failure. finished reports whether that
	// was because the application has ended, which was noted.
	isNoFailure, finished bool
}

// ended describes the end of one proxy.
type ended struct {
	end   sidecar.End
	err   error
	words string
	// taken says which other process has a port of a proxy that was never ready, or is "".
	taken string
}

// isDone reports whether no proxy is started after this one until the profile changes: restartPolicy is OnFailure, it ended with code 0, and
// no other is newer or takes connections. Its container is kept to tell the next agent. The kubelet keeps it, too, as the
// newest of its name.
func isDone(o observed, c sidecar.Container) bool {
	p := o.choice.Profile
	if p == nil || p.Spec.RestartPolicy != profile.RestartOnFailure || p.Hash != o.proxies[c.ID].madeUnder || o.choice.Finished {
		return false
	}
	another := slices.ContainsFunc(o.containers, func(other sidecar.Container) bool { return other.Epoch > c.Epoch || o.isAsked(other) })
	return c.State == sidecar.Exited && o.proxies[c.ID].exit.succeeded && !another
}

// hasDone reports whether the sandbox's proxy is not started again.
func hasDone(o observed) bool {
	return slices.ContainsFunc(o.containers, func(c sidecar.Container) bool { return isDone(o, c) })
}

// news is what a reconcile has learned that is written down, or told to others.
type news struct {
	serving []uint32 // epochs of Envoys that have taken over
	gone    []uint32 // epochs of which nothing is kept
	faults  []fault
}

// fault is a proxy that has ended without being told to, or hangs.
type fault struct {
	proxy proxy
	at    time.Time
	why   string
	// words are the last lines of its log, in the file logPath. unreported is its container if the runtime has not told how it ended.
	words, logPath, unreported string
}

// decision is what to do, and the version of the profile that a proxy is started from.
type decision struct {
	plan    plan.Decision
	version *profile.Version
}
