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

func (r *round) publish() {
	out := outcome{r, r.serving()}
	served, there := map[podnet.Key]bool{}, map[podnet.Key]bool{}
	for _, m := range out.rec.members() {
		served[m.key()] = true
	}
	for _, p := range r.pods {
		there[p.key()], p.refusedFor = true, r.pauses.of(p.sandbox.UID).refused.why
	}
	figures := out.figures(r.pods, served)
	r.mu.Lock()
	figures.Reloads = r.figures.Reloads
	r.served, r.figures = served, figures
	if r.proxy.ended {
		r.proxyEnded()
		clear(served)
	}
	r.known = r.known || r.inForce != nil || phaseOf(r.seen, r.inForce, r.last != nil) != starting
	r.mu.Unlock()
	out.show(r.screen, r.pods, served)
	r.names.forget(there)
	maps.DeleteFunc(r.pauses, func(uid string, p *podPauses) bool { return podWith(r.pods, uid) == nil && p.calm(time.Now()) })
}

func isTaken(err error) bool { return errors.Is(err, sidecars.ErrPortTaken) }

type outcome struct {
	*round
	rec *record // the configuration that the proxy serves, or nil
}

// show reports each pod, and takes back what was shown of pods that are not served any more.
func (o outcome) show(on screen, pods []*podNow, served map[podnet.Key]bool) {
	for _, p := range pods {
		serves, chosen := served[p.key()], p.choice.Name == o.name
		if p.gone || !chosen && (p.choice.Name != "" || !serves) || p.choice.Finished && !serves {
			continue // the proxy of another profile is shown, or none
		}
		on.show(p.sandbox, o.judged(p, o.statusOf(p, serves)))
	}
	for uid := range on.shown {
		p := podWith(pods, uid)
		switch {
		case p == nil || p.gone || p.choice.Name != "" && p.choice.Name != o.name:
		case p.choice.Name != "" || served[p.key()]:
			continue
		default:
			on.Retract(uid)
		}
		delete(on.shown, uid)
	}
}

// has reports whether a configuration is of the profile's present version.
func (o outcome) has(hash string) bool { return o.wanted != nil && o.wanted.Hash == hash }

func (o outcome) statusOf(p *podNow, served bool) sidecars.Status {
	out := sidecars.Status{Profile: o.name, State: v1alpha1.Starting, Image: o.proxy.Image, Message: p.waits}
	refused := p.refused
	if refused == "" && p.join && p.waits == p.refusedFor {
		refused = p.waits
	}
	if refused != "" {
		out.Message, out.Failure = refused, refused
	}
	switch {
	case served:
		out.State, out.Ready, out.Hash = v1alpha1.Running, true, o.rec.Hash
		if out.Message == "" && (o.foreign || o.wanted != nil && !o.has(o.rec.Hash)) {
			out.Message, out.Failure = o.fault, o.fault
		}
		return out
	case refused != "":
		out.State = v1alpha1.Refused
	case !o.seen.there:
		out.State, out.Message = v1alpha1.Failed, fmt.Sprintf("the proxy that the node's pods share does not run: look for the pod with the label %s=%s in the agent's namespace and on this node", sidecar.LabelShared, o.name)
	case o.fault != "":
		out.State, out.Message, out.Failure = v1alpha1.Failed, o.fault, o.fault
	case o.lock == nil:
		out.Message = "another agent of the node works on the shared proxy"
	case o.stuck != "":
		out.Message = o.stuck
	case o.inForce == nil:
		out.Message = "the shared proxy does not answer yet"
	}
	return out
}

// judged adds to a pod's status whether the present version has failed for it.
func (o outcome) judged(p *podNow, status sidecars.Status) sidecars.Status {
	upgraded := status.Ready && !o.foreign && o.has(status.Hash)
	if !upgraded && (status.Failure != "" || status.State == v1alpha1.Failed) {
		status.FailedHash = p.choice.Hash
	}
	return status
}

func (o outcome) figures(pods []*podNow, served map[podnet.Key]bool) Figures {
	now := Figures{Running: o.seen.there, Newest: o.rec != nil && !o.foreign && (o.wanted == nil || o.has(o.rec.Hash))}
	for _, p := range pods {
		switch {
		case served[p.key()]:
			now.Served++
			now.Newest = now.Newest && (p.stay || p.join)
		case p.gone || p.choice.Ending || choseElsewhere(p.choice, o.name) || p.choice.Name == "" && p.waits == "":
		case o.statusOf(p, false).Failure != "":
			now.Refused++
		default:
			now.Waiting++
		}
	}
	return now
}
