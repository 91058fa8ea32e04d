package sidecars

import (
	"fmt"
	"slices"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/printable"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/plan"
)

// endedWell is said of a proxy that is not started again.
const endedWell = "it has ended with exit code 0, and by its profile's restartPolicy (OnFailure) it is not started again"

// report gives the slot of an upgrade that has succeeded to the next sandbox, says how the proxy is, and returns what is remembered of both.
func report(m *Manager, o observed, mem memory, d decision, pulling bool) memory {
	serving := o.container(d.plan.Serving)
	if p := o.choice.Profile; p != nil && serving != nil && serving.Hash == d.version.Hash {
		mem.upgrades.standIns = 0
		if mem.upgrades.noHandover == serving.Hash { // it can hand over to its own successor
			mem.upgrades.noHandover = ""
		}
		next, freed := m.Rollout.Done(p, o.key, serving.Hash)
		if freed {
			mem.upgrades.lastAt, mem.upgrades.failedInARow = time.Now(), 0
			m.counts.change(o.choice, func(of *Figures) { of.Upgraded++ })
		}
		m.followed.enqueue(next)
		tries := serving.Hash != p.Hash && mem.upgrades.failedHash == p.Hash // its upgrade fails
		if !tries && time.Since(later(mem.failures.lastAt, o.proxies[d.plan.Serving].probes.FirstReadyAt)) > stableTime {
			mem.failures.inARow, mem.failures.why, mem.failures.logPath = 0, "", ""
		}
	}
	status := statusOf(o, mem, d.plan, pulling)
	status.Paused = status.FailedHash != "" && m.Rollout.Paused(o.choice.Name)
	m.followed.update(o.key, func(*entry) { m.Reporter.Report(o.sandbox, status) }) // not of a pod that is forgotten meanwhile
	return countHealth(m, o, mem, status)
}

// statusOf describes what was decided. pulling reports whether a start waits for its image.
func statusOf(o observed, mem memory, d plan.Decision, pulling bool) Status {
	f := mem.failures
	serving := o.proxies[d.Serving].probes
	why := f.why
	if c := o.container(d.Serving); why != "" && c != nil && serving.ReadyNow && versionOf(*c) == o.choice.Hash {
		why = "earlier: " + why
	}
	out := Status{
		Profile: o.choice.Name, State: stateOf(o, d, f.inARow > 0, pulling), Restarts: mem.restarts, LastUpgrade: mem.upgrades.lastAt, Message: why, Failure: f.why,
		Final: hasFinished(o, d),
	}
	switch {
	case o.choice.Refusal != "":
		out.Message = o.choice.Refusal
	case hasDone(o):
		out.Message, out.Failure = endedWell, ""
	case !serving.ReadyNow && serving.Readiness.Why != "":
		out.Message = "it does not answer: " + serving.Readiness.Why
	case mem.stale != "":
		out.Message = printable.Joined(why, mem.stale)
	case why == "" && waitsForFirstProxy(o) && len(o.containers)+len(d.Actions) == 0:
		out.Message = "its first proxy waits for those of other pods (update.maxParallel), or for the end of a pause of the profile; the pod runs as before meanwhile"
	case why == "" && waitsForDrain(o, mem.upgrades, d):
		out.Message = "its upgrade waits until an older proxy has finished its connections, or drainSeconds are over"
	case why == "":
		out.Message = mem.unmoved
	}
	shown := o.container(d.Serving)
	if shown == nil && len(o.containers) > 0 {
		shown = &o.containers[len(o.containers)-1]
	}
	if shown != nil {
		out.Epoch, out.Image, out.Hash = shown.Epoch, shown.Image, versionOf(*shown)
		out.Ready = shown.ID == d.Serving && o.proxies[shown.ID].probes.ReadyNow
		facts := o.home.Epoch(shown.Epoch).Facts()
		out.Labels = facts.Labels
		for _, more := range []string{o.choice.Unusable, standInFor(o, mem.upgrades, *shown), mem.outdated, facts.Aside} {
			out.Message = printable.Joined(out.Message, more)
		}
	}
	out.Message = printable.Clip(out.Message, v1alpha1.MaxMessage)
	if upgraded := out.Ready && out.Hash == o.choice.Hash; o.choice.Refusal != "" || !upgraded && f.why != "" {
		out.FailedHash = o.choice.Hash
	}
	return out
}

// waitsForDrain reports whether the serving proxy is not upgraded since as many proxies run as may.
func waitsForDrain(o observed, u upgrades, d plan.Decision) bool {
	serving := o.container(d.Serving)
	return serving != nil && o.choice.Profile != nil && versionOf(*serving) != o.choice.Hash && isFull(o, u)
}

// hasFinished reports whether the pod has finished, and its proxy with it.
func hasFinished(o observed, d plan.Decision) bool { return o.choice.Finished && d.Serving == "" }

func stateOf(o observed, d plan.Decision, failed, pulling bool) v1alpha1.State {
	starts := slices.ContainsFunc(d.Actions, func(a plan.Action) bool { return a.Verb == plan.Start })
	switch {
	case hasFinished(o, d), hasDone(o), d.Serving == "" && o.notes.Finished(time.Now()):
		return v1alpha1.Ended
	case d.Serving != "" && (len(d.Awaited) > 0 || starts):
		return v1alpha1.Upgrading
	case d.Serving != "":
		return v1alpha1.Running
	case o.choice.Profile == nil:
		return v1alpha1.Refused
	case pulling:
		return v1alpha1.Pulling
	case len(d.Awaited) > 0 || (starts || waitsForFirstProxy(o)) && !failed:
		return v1alpha1.Starting
	}
	return v1alpha1.Failed
}

// standInFor says why a proxy is not of the profile's present version, or "" if that is tried yet.
func standInFor(o observed, u upgrades, c sidecar.Container) string {
	p, good := o.choice.Profile, o.versions.lastGood
	if good == nil || versionOf(c) != good.Hash || !o.versions.presentFailed && u.insteadOf != p.Hash {
		return ""
	}
	return fmt.Sprintf("the profile's version %s is not known to work on this node: the proxy is of %s, the last one that was ready here", p.Hash, good.Hash)
}

// countHealth reports a successful start, and remembers the proxy's health.
func countHealth(m *Manager, o observed, mem memory, status Status) memory {
	if status.Ready && mem.starts && o.choice.Profile != nil && m.Started != nil {
		m.Started(o.choice.Name, time.Since(mem.since))
	}
	mem.starts = mem.starts && !status.Ready
	m.followed.update(o.key, func(e *entry) { e.health = healthOf(status) })
	return mem
}
