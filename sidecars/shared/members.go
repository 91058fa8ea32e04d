package shared

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/printable"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/profile"
)

const readsPerRound = 30

const readTimeout = 5 * time.Second

// meet finds out about each pod that is followed or in the last configuration.
func (r *round) meet(ctx context.Context) {
	tracked := map[podnet.Key]podnet.Sandbox{}
	before := map[podnet.Key]*member{}
	if r.last != nil {
		for i, m := range r.last.Members {
			tracked[m.key()], before[m.key()] = m.Sandbox, &r.last.Members[i]
		}
	}
	look := r.chosen.now()
	for key, f := range look {
		tracked[key] = f.sandbox
	}
	for key, s := range tracked {
		_, known := look[key]
		p := &podNow{sandbox: s, before: before[key], tries: r.pauses.of(key.PodUID).refused.times, told: look[key].told}
		if p.verdict = judge(r.factsOf(ctx, p, known)); p.refused != "" {
			r.chosen.notMeasured(key)
		}
		r.pods = append(r.pods, p)
	}
	slices.SortFunc(r.pods, func(a, b *podNow) int {
		return strings.Compare(a.sandbox.Pod()+a.sandbox.ID, b.sandbox.Pod()+b.sandbox.ID)
	})
	for _, p := range r.pods {
		f := look[p.key()]
		r.refresh(ctx, p, f.told != f.known)
	}
	r.separate()
}

// factsOf finds out about one pod. It asks the runtime only about sandboxes that may have ended.
func (r *round) factsOf(ctx context.Context, p *podNow, followed bool) facts {
	out := facts{profile: r.name, member: p.before != nil}
	choice, err := r.Cluster.Choice(ctx, p.sandbox)
	switch {
	case errors.Is(err, podnet.ErrNoPod):
		out.gone, p.gone = true, true
	case err != nil:
		out.unknown = "read what the pod has chosen: " + err.Error()
	}
	p.choice, out.choice = choice, choice
	if chosen := choice.Profile; chosen != nil && choice.Name == r.name && chosen.Shared() {
		r.wanted = chosen
	}
	out.held = out.member && choseElsewhere(choice, r.name) && r.Hold != nil && r.Hold(r.name, p.sandbox)
	if out.member && (!followed || out.gone || choice.Ending || choice.Finished) {
		ready, err := r.Sandboxes.Ready(ctx, p.sandbox)
		out.ended = err == nil && !ready
	}
	if out.member && !out.ended {
		out.ended = r.names.gone(ctx, p.sandbox, p.before.Data.NetNS, r.now)
	}
	return out
}

// refresh reads a pod that is to join, or may have changed.
func (r *round) refresh(ctx context.Context, p *podNow, look bool) {
	pauses := r.pauses.of(p.sandbox.UID)
	early := p.before != nil && p.before.Data.IP == "" // it was there before the kubelet has written its address
	if !p.join {
		return
	}
	p.waits = pauses.refused.why // until it is in force
	switch {
	case !pauses.refused.over(r.now):
		r.wakeAt(pauses.refused.until)
		return
	case r.lock == nil || r.inForce == nil || p.before != nil && !look && !early: // no pod can join, or nothing has changed
		return
	case r.now.Before(r.reloaded.Add(reloadPause)):
		r.wakeAt(r.reloaded.Add(reloadPause))
		return
	case !pauses.unread.over(r.now): // readable pods come first
		p.waits = pauses.unread.why
		r.wakeAt(pauses.unread.until)
		return
	case p.before == nil && !pauses.joined.over(r.now):
		p.waits = "the pod has joined the shared proxy a moment ago, and left: it joins again after a pause, a longer one each time"
		r.wakeAt(pauses.joined.until)
		return
	case p.before != nil && !pauses.changed.over(r.now):
		r.wakeAt(pauses.changed.until)
		return
	case r.reads >= readsPerRound:
		r.wakeAt(r.now.Add(reloadPause))
		return
	}
	r.reads++
	reading, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	m, err := readMember(reading, r.Cluster, r.names, p.sandbox)
	if err != nil {
		if reading.Err() != nil { // the next reads would fail, too, and served pods wait for the end of the round
			r.reads = readsPerRound
		}
		p.waits = err.Error()
		pauses.unread.note(r.now, errorPause, lastUnread, p.waits)
		r.wakeAt(pauses.unread.until)
		return
	}
	pauses.unread = backoff{}
	if early {
		pauses.changed.note(r.now, firstPause, lastPause, "")
		r.wakeAt(pauses.changed.until)
	}
	if p.before != nil && reflect.DeepEqual(p.before.Data, m.Data) {
		r.inForceNow(p)
		return
	}
	p.now = &m
}

// inForceNow notes that what was known of a pod when the round began is in force: see following.inForce.
func (r *round) inForceNow(p *podNow) (took time.Duration, measured bool) {
	r.pauses.of(p.sandbox.UID).refused.why, p.waits = "", ""
	return r.chosen.inForce(p.key(), p.told, r.now)
}

// readMember returns a pod as templates are to see it. Its sandbox has to run.
func readMember(ctx context.Context, cluster sidecars.Cluster, names namespaces, s podnet.Sandbox) (member, error) {
	ready, err := names.Ready(ctx, s)
	if err != nil {
		return member{}, fmt.Errorf("ask the runtime for the sandbox: %w", err)
	} else if !ready {
		return member{}, podnet.ErrNotReady
	}
	name, err := names.Name(ctx, s)
	if err != nil {
		return member{}, fmt.Errorf("find the pod's network namespace: %w", err)
	}
	delete(names.lost, s.Key())
	pod, err := cluster.CurrentPod(ctx, s)
	if err != nil {
		return member{}, fmt.Errorf("read pod: %w", err)
	}
	return member{Sandbox: s, Data: profile.SharedPod{PodData: profile.PodDataOf(pod), NetNS: name}}, nil
}

// separate refuses pods whose network namespace has the name of another one's: that one's traffic would be taken for theirs.
func (r *round) separate() {
	owner := map[string]*podNow{}
	for _, p := range r.pods {
		if p.before != nil && p.stay {
			owner[p.before.Data.NetNS] = p
		}
	}
	for _, p := range r.pods {
		if !p.changed() {
			continue
		}
		other := owner[p.now.Data.NetNS]
		if other != nil && other != p {
			r.refuse(p, fmt.Sprintf("its network namespace %s is that of the pod %s", p.now.Data.NetNS, other.sandbox.Pod()))
			continue
		}
		owner[p.now.Data.NetNS] = p
	}
}

// refuse keeps a pod, or its change, out of the configuration for some time.
func (r *round) refuse(p *podNow, why string) { r.keepOut(p, why, firstPause, lastPause) }

// keepOut is refuse with bounds of the pause.
func (r *round) keepOut(p *podNow, why string, first, last time.Duration) {
	why = printable.Words(why)
	pauses := r.pauses.of(p.sandbox.UID)
	pauses.refused.note(time.Now(), first, last, why)
	p.now, p.waits = nil, why
	r.chosen.notMeasured(p.key())
	p.tries = pauses.refused.times
	r.wakeAt(pauses.refused.until)
}

type facts struct {
	profile string
	choice  sidecars.Choice
	// unknown is why the choice could not be read, or "". gone reports whether the API server does not know the pod.
	unknown string
	gone    bool
	// member reports whether it is in the configuration that is in force, held whether its rules still lead to the proxy, and ended whether
	// its sandbox has ended.
	member, held, ended bool
}

// choseElsewhere reports whether a pod has chosen another profile than the given one, or has opted out. A pod that chooses nothing has not.
func choseElsewhere(c sidecars.Choice, profile string) bool {
	return c.OptedOut || c.Name != "" && c.Name != profile
}

// judge decides whether a pod is to be served. A pod that is served stays until its sandbox has ended, unless it has chosen otherwise and its
// rules do not lead to the proxy any more.
func judge(f facts) verdict {
	chosen := f.choice.Name == f.profile && !f.choice.OptedOut
	switch {
	case f.ended:
		return verdict{}
	case f.unknown != "":
		return verdict{stay: f.member, waits: f.unknown}
	case f.gone || f.choice.Ending || f.choice.Finished:
		return verdict{stay: f.member}
	case choseElsewhere(f.choice, f.profile):
		return verdict{stay: f.member && f.held}
	case !chosen: // it chooses nothing any more, and keeps the proxy that it has, as with one of its own
		return verdict{stay: f.member}
	case f.choice.Profile == nil:
		return verdict{stay: f.member, refused: f.choice.Refusal}
	case !f.choice.Profile.Shared():
		return verdict{stay: f.member, refused: fmt.Sprintf("the profile %s is not shared any more: choose another one", f.profile)}
	}
	return verdict{stay: f.member, join: true}
}
