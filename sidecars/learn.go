package sidecars

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/profile"
)

const (
	// endedUnknown is said of a proxy whose container is gone.
	endedUnknown = "it has ended, and the runtime no longer knows how"
	// endedUnreported is said of a proxy until the runtime tells how it has ended.
	endedUnreported = "it has ended"
)

// learn takes in what has come since the last reconcile, and what is read because of it.
func learn(ctx context.Context, m *Manager, o observed, mem memory, in inbox) (observed, memory) {
	if !mem.looked {
		mem.looked, mem.starts = true, len(o.containers) == 0
	}
	o = afterExits(o, in.exits, time.Now())
	o, mem = renewSecrets(ctx, m, o, mem)
	o, serving, hung := afterReplies(o, in.replies)
	o = withServing(o, serving)
	orphans := orphansThatServe(ctx, m.Asker, o)
	o = markOutdated(withServing(o, orphans))
	read := readEnds(ctx, m, o, mem.failures, len(hung) > 0)
	if read.finished {
		o.notes = o.notes.WithFinished()
	}
	o, failures, learned := afterEnds(o, mem.failures, read, hung, time.Now())
	mem.failures, learned.serving = failures, slices.Concat(serving, orphans)
	return o, settle(ctx, m, o, mem, learned)
}

// afterExits returns the sandbox with the containers that this agent sees for the first time, and with ends of processes. A proxy whose process has
// ended has ended, also while the runtime lists it as running. It stays in the runtime until that agrees. If the kernel has not said that it has
// ended, the proxy is asked.
func afterExits(o observed, exits map[string]processExit, now time.Time) observed {
	proxies := map[string]proxy{}
	maps.Copy(proxies, o.proxies)
	o.containers = slices.Clone(o.containers)
	for i, c := range o.containers {
		p, known := proxies[c.ID]
		if !known {
			p = proxy{epoch: c.Epoch, hash: versionOf(c), madeUnder: versionOf(c), seenSince: now, found: true}
		}
		if e, gone := exits[c.ID]; gone {
			p.exit.at, p.exit.certain, p.probes.ReadyNow = e.at, e.certain, false
		}
		p.exit.unreported = !p.exit.at.IsZero() && c.State == sidecar.Running
		switch {
		case c.State == sidecar.Exited && p.exit.at.IsZero():
			p.exit.at, p.probes.ReadyNow = now, false
		case p.exit.unreported && p.exit.certain:
			o.containers[i].State = sidecar.Exited
		}
		proxies[c.ID] = p
	}
	o.proxies = proxies
	return o
}

// afterReplies returns the sandbox with what its proxies have answered, the epochs of Envoys that say that they have taken over, and the containers of
// proxies that hang from now on.
func afterReplies(o observed, replies []probe.Reply) (out observed, serving []uint32, hung []string) {
	threshold := 1
	if p := o.choice.Profile; p != nil {
		threshold = max(1, int(p.Spec.Readiness.FailureThreshold))
	}
	o.proxies = maps.Clone(o.proxies)
	for _, r := range replies {
		p, known := o.proxies[r.ID]
		if !known {
			continue
		}
		c := o.container(r.ID)
		runs := c != nil && o.isAsked(*c)
		p.probes = p.probes.After(r, threshold)
		p.probes.ReadyNow = p.probes.ReadyNow && runs
		o.proxies[r.ID] = p
		if !runs {
			continue
		}
		if p.probes.HungAt.IsZero() && p.probes.Liveness.IsHung(o.choice.Profile) && !slices.Contains(hung, r.ID) {
			hung = append(hung, r.ID)
		}
		if r.Serves {
			serving = append(serving, c.Epoch)
		}
	}
	return o, serving, hung
}

// withServing returns the sandbox with Envoys that have taken over. It is noted: once one has a successor it no longer says so, as its admin interface is
// closed first.
func withServing(o observed, epochs []uint32) observed {
	for _, epoch := range epochs {
		o.notes = o.notes.With(home.Ready, epoch)
	}
	return o
}

// afterEnds returns the sandbox, and the failures of before, with what was read about ends: of proxies that hang, are no longer there, or have
// exited. Each is news once.
func afterEnds(o observed, last failures, read ends, hung []string, now time.Time) (observed, failures, news) {
	var out news
	for _, id := range hung {
		if p := o.proxies[id]; !read.isNoFailure {
			out.faults = append(out.faults, fault{proxy: p, at: now, why: p.probes.Hangs()})
			p.probes.HungAt = now
			o = o.with(id, p)
		}
	}
	o, last = afterWords(o, last, read, now)
	o, out = afterLost(o, read, out, now)
	for i, c := range o.containers {
		if c.State == sidecar.Exited && !o.isExpected(o.proxies[c.ID]) {
			o, out = afterExit(o, i, read, out, now)
		}
	}
	return o, last, out
}

// afterExit returns the sandbox after a container has exited. With restartPolicy OnFailure it counts as running until the runtime
// tells how it has ended: the next start depends on that.
func afterExit(o observed, i int, read ends, out news, now time.Time) (observed, news) {
	c := o.containers[i]
	p, how := o.proxies[c.ID], read.of[c.ID]
	if read.isNoFailure {
		p.exit.noted = true
		return o.with(c.ID, p), out
	}
	onFailure := o.choice.Profile != nil && o.choice.Profile.Spec.RestartPolicy == profile.RestartOnFailure
	unreported := isUnreported(p.exit, how.err, now)
	p.exit.unreported = p.exit.unreported || unreported
	if unreported && onFailure {
		o.containers = slices.Clone(o.containers)
		o.containers[i].State = sidecar.Running
		return o.with(c.ID, p), out
	}
	p.exit.noted, p.exit.succeeded = true, how.err == nil && how.end.ExitCode == 0
	o = o.with(c.ID, p)
	if onFailure && p.found && p.exit.succeeded || isDone(o, c) { // found: it was done for the last agent, and the profile has changed since
		out.gone = append(out.gone, c.Epoch)
		return o, out
	}
	one := fault{proxy: p, at: p.exit.at, why: how.taken + howEnded(how, unreported), words: how.words, logPath: how.end.LogPath}
	if unreported {
		one.unreported = c.ID
	}
	out.faults = append(out.faults, one)
	return o, out
}

// afterLost returns the sandbox without the proxies that are no longer listed: the kubelet removes containers that have ended, and may be faster.
func afterLost(o observed, read ends, out news, now time.Time) (observed, news) {
	all := o
	for id, p := range all.proxies {
		if o.container(id) != nil {
			continue
		}
		o = o.without(id)
		out.gone = append(out.gone, p.epoch)
		if all.isExpected(p) || read.isNoFailure {
			continue
		}
		at := p.exit.at
		if at.IsZero() {
			at = now
		}
		out.faults = append(out.faults, fault{proxy: p, at: at, why: read.of[id].taken + endedUnknown})
	}
	return o, out
}

// afterWords adds to why the last proxy has ended how it did, once the runtime tells, and the last lines of its log.
func afterWords(o observed, last failures, read ends, now time.Time) (observed, failures) {
	p := o.proxies[last.unreported]
	switch {
	case last.unreported == "":
	case isUnreported(p.exit, read.earlier.err, now):
		p.exit.unreported = true
		o = o.with(last.unreported, p)
	default:
		last.whyOnly = strings.TrimSuffix(last.whyOnly, endedUnreported) + howEnded(read.earlier, false)
		last.why, last.logPath, last.unreported = last.whyOnly, read.earlier.end.LogPath, ""
	}
	if last.logPath == "" {
		return o, last
	}
	if read.words != "" { // the log may be gone meanwhile
		last.why = last.whyOnly + read.words
	}
	if now.Sub(last.lastAt) > wordsTime {
		last.logPath = ""
	}
	return o, last
}

// isUnreported reports whether the runtime is to be asked again how a proxy has ended. err is what it has answered.
func isUnreported(e exit, err error, now time.Time) bool {
	return errors.Is(err, sidecar.ErrNotEnded) && now.Sub(e.at) <= wordsTime
}

func howEnded(how ended, unreported bool) string {
	switch {
	case unreported:
		return endedUnreported
	case how.err != nil:
		return endedUnknown
	}
	return fmt.Sprintf("it has ended with exit code %d (%s)", how.end.ExitCode, how.end.Reason)
}

// secretsPeriod is the time between two checks of a sandbox's secrets.
const secretsPeriod = 10 * time.Second

// renewSecrets brings the secrets of the sandbox's proxies up to date, once in secretsPeriod. It may note that new proxies have to read them.
func renewSecrets(ctx context.Context, m *Manager, o observed, mem memory) (observed, memory) {
	now := time.Now()
	if now.Sub(mem.secretsAt) < secretsPeriod {
		return o, mem
	}
	mem.secretsAt = now
	pod := func() (*corev1.Pod, error) { return m.Cluster.CurrentPod(ctx, o.sandbox) }
	mem.stale = o.home.RenewSecrets(ctx, m.Secrets, o.sandbox.Namespace, pod, o.containers)
	o.notes = o.home.Notes()
	return o, mem
}
