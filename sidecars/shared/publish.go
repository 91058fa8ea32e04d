package shared

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars"
)

// shownPod is what was reported of a pod.
type shownPod struct {
	sandbox podnet.Sandbox
	status  sidecars.Status
}

func isTaken(err error) bool { return errors.Is(err, sidecars.ErrPortTaken) }

// publish shows what the round has led to.
func (r *round) publish() {
	served := map[sidecars.Key]bool{}
	rec := r.serving()
	if rec != nil {
		for _, m := range rec.Members {
			served[m.key()] = true
		}
	}
	figures := r.sumUp(rec, served)
	r.mu.Lock()
	figures.Reloads, figures.Changes = r.figures.Reloads, r.figures.Changes
	r.served, r.figures = served, figures
	if r.proxy.ended {
		r.proxyEnded()
		clear(served)
	}
	r.known = r.known || r.inForce != nil || phaseOf(r.seen, r.inForce, r.last != nil) != starting
	r.mu.Unlock()
	sum := sidecars.Summary{}
	for _, p := range r.pods {
		r.report(p, rec, served[p.key()], &sum)
	}
	r.retract(served)
	if r.fault != "" && sum.Failed > 0 {
		sum.Message = r.fault // it concerns all pods, and a pod's own trouble would hide it
	}
	if sum != r.sum {
		r.sum = sum
		r.Summaries.Summarize(r.name, sum)
	}
	r.forget()
}

// forget drops what is remembered of pods that are not there any more.
func (r *round) forget() {
	there := map[sidecars.Key]bool{}
	for _, p := range r.pods {
		there[p.key()] = true
	}
	maps.DeleteFunc(r.names, func(key sidecars.Key, _ time.Time) bool { return !there[key] })
	maps.DeleteFunc(r.lost, func(key sidecars.Key, _ bool) bool { return !there[key] })
	maps.DeleteFunc(r.pauses, func(uid string, p *podPauses) bool {
		return r.podOf(uid) == nil && p.calm(time.Now())
	})
}

// report shows one pod, unless it has chosen another profile: that one's proxy is shown then.
func (r *round) report(p *podNow, rec *record, served bool, sum *sidecars.Summary) {
	chosen := p.choice.Name == r.name
	if p.gone || !chosen && (p.choice.Name != "" || !served) || p.choice.Finished && !served {
		return
	}
	status := r.statusOf(p, rec, served)
	if chosen {
		r.count(p, status, sum)
	}
	now := shownPod{p.sandbox, status}
	if r.shown[p.sandbox.UID] != now {
		r.shown[p.sandbox.UID] = now
		r.Reporter.Report(p.sandbox, status)
	}
}

// statusOf describes how a pod is served.
func (r *round) statusOf(p *podNow, rec *record, served bool) sidecars.Status {
	out := sidecars.Status{Profile: r.name, State: v1alpha1.Starting, Image: r.proxy.Image, Message: p.waits}
	refused := p.refused
	if refused == "" && p.join && p.waits != "" && p.waits == r.pausesOf(p.sandbox.UID).refused.why {
		refused = p.waits
	}
	if refused != "" {
		out.Message, out.Failure = refused, refused
	}
	switch {
	case served:
		out.State, out.Ready, out.Hash = v1alpha1.Running, true, rec.Hash
		if out.Message == "" && (r.foreign || r.wanted != nil && r.wanted.Hash != rec.Hash) {
			out.Message, out.Failure = r.fault, r.fault
		}
		return out
	case refused != "":
		out.State = v1alpha1.Refused
	case !r.seen.there:
		out.State, out.Message = v1alpha1.Failed, ErrNoProxy.Error()+fmt.Sprintf(": look for the pod with the label %s=%s in the agent's namespace and on this node", sidecar.LabelShared, r.name)
	case r.fault != "":
		out.State, out.Message, out.Failure = v1alpha1.Failed, r.fault, r.fault
	case r.lock == nil:
		out.Message = "another agent of the node works on the shared proxy"
	case r.stuck != "":
		out.Message = r.stuck
	case r.inForce == nil:
		out.Message = "the shared proxy does not answer yet"
	}
	return out
}

// count adds a pod to what the profile's status shows.
func (r *round) count(p *podNow, status sidecars.Status, sum *sidecars.Summary) {
	sum.Pods++
	sum.Generation = max(sum.Generation, p.choice.Generation)
	if status.Ready && !r.foreign && r.wanted != nil && status.Hash == r.wanted.Hash {
		sum.Upgraded++
		return
	}
	if status.Failure == "" && status.State != v1alpha1.Failed {
		return
	}
	sum.Failed++
	if message := p.sandbox.Pod() + ": " + status.Message; sum.Message == "" {
		sum.Message = message
	}
}

// retract takes back what was shown of pods that are not served any more, and have not chosen another profile.
func (r *round) retract(served map[sidecars.Key]bool) {
	for uid := range r.shown {
		p := r.podOf(uid)
		switch {
		case p == nil || p.gone || p.choice.Name != "" && p.choice.Name != r.name:
		case p.choice.Name != "" || served[p.key()]:
			continue
		default:
			r.Reporter.Retract(uid)
		}
		delete(r.shown, uid)
	}
}

// podOf returns the round's pod with a UID, or nil.
func (r *round) podOf(uid string) *podNow {
	for _, p := range r.pods {
		if p.sandbox.UID == uid {
			return p
		}
	}
	return nil
}
