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

// restartOnFailure is the restart policy under which a proxy that ends with code 0 is not started again.
const restartOnFailure = "OnFailure"

// endedWell is said of a proxy that is not started again.
const endedWell = "it has ended with exit code 0, and by its profile's restartPolicy (OnFailure) it is not started again"

// Status is how a pod's proxy is.
type Status struct {
	Profile string
	State   v1alpha1.State
	Ready   bool
	// Epoch, Image and Hash describe the serving proxy, or the newest if none serves.
	Epoch       uint32
	Image, Hash string
	Restarts    int32
	Message     string
	LastUpgrade time.Time
	// Final reports whether nothing follows: the pod has finished.
	Final bool
	// Failure is why the last proxy ended or could not be started, or "".
	Failure string
	// FailedHash is the version of the profile that the pod should have a proxy of, if it failed, or the pod cannot have one. Paused reports
	// whether others wait for that.
	FailedHash string
	Paused     bool
	// Labels reports whether the pod's peers are to send mTLS to the proxy: see istio.TLSModeLabel.
	Labels bool
}

// status describes what was decided. pulling reports whether a start waits for its image.
func (v view) status(f *followed, d plan.Decision, pulling bool) Status {
	out := Status{
		Profile: v.choice.Name, State: v.state(d, f.failures > 0, pulling), Restarts: f.restarts, LastUpgrade: f.upgraded, Message: f.why, Failure: f.why,
		Final: v.hasFinished(d),
	}
	switch {
	case v.choice.Refusal != "":
		out.Message = v.choice.Refusal
	case v.done():
		out.Message, out.Failure = endedWell, ""
	case !v.answers[d.Serving].probes.ReadyNow && v.answers[d.Serving].probes.Readiness.Why != "":
		out.Message = "it does not answer: " + v.answers[d.Serving].probes.Readiness.Why
	case f.stale != "":
		out.Message = printable.Joined(f.why, f.stale)
	case f.why == "":
		out.Message = f.unmoved
	}
	shown := v.container(d.Serving)
	if shown == nil && len(v.there) > 0 {
		shown = &v.there[len(v.there)-1]
	}
	if shown != nil {
		out.Epoch, out.Image, out.Hash = shown.Epoch, shown.Image, versionOf(*shown)
		out.Ready = shown.ID == d.Serving && v.answers[shown.ID].probes.ReadyNow
		facts := v.home.IstioFacts(shown.Epoch)
		out.Labels = facts.Labels
		out.Message = printable.Joined(printable.Joined(out.Message, v.standIn(f, *shown)), facts.Aside)
	}
	out.Message = printable.Clip(out.Message, v1alpha1.MaxMessage)
	if upgraded := out.Ready && out.Hash == v.choice.Hash; v.choice.Refusal != "" || !upgraded && f.why != "" {
		out.FailedHash = v.choice.Hash
	}
	return out
}

// hasFinished reports whether the pod has finished, and its proxy with it.
func (v view) hasFinished(d plan.Decision) bool { return v.choice.Finished && d.Serving == "" }

func (v view) state(d plan.Decision, failed, pulling bool) v1alpha1.State {
	starts := slices.ContainsFunc(d.Actions, func(a plan.Action) bool { return a.Verb == plan.Start })
	switch {
	case v.hasFinished(d), v.done(), d.Serving == "" && v.home.Finished(time.Now()):
		return v1alpha1.Ended
	case d.Serving != "" && (len(d.Ask) > 0 || starts):
		return v1alpha1.Upgrading
	case d.Serving != "":
		return v1alpha1.Running
	case v.choice.Profile == nil:
		return v1alpha1.Refused
	case pulling:
		return v1alpha1.Pulling
	case len(d.Ask) > 0 || starts && !failed:
		return v1alpha1.Starting
	}
	return v1alpha1.Failed
}

// standIn says why a proxy is not of the profile's present version, or "" if that is tried yet.
func (v view) standIn(f *followed, c sidecar.Container) string {
	p := v.choice.Profile
	if v.before == nil || versionOf(c) != v.before.Hash || !v.bad && f.instead != p.Hash {
		return ""
	}
	return fmt.Sprintf("the profile's version %s is not known to work on this node: the proxy is of %s, the last one that was ready here", p.Hash, v.before.Hash)
}
