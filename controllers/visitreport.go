package controllers

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
)

// report queues a report to the pod's owner.
func (v *visit) report(status Status, reason, message string) {
	r := Report{
		Sandbox: v.sandbox, Status: status, Reason: reason, Message: message,
		Entrance: v.by, Backend: v.BackendName, PodVersion: v.pod.ResourceVersion,
	}
	if known, ok := v.Ledger.Of(v.sandbox.UID); ok && status != "" && known.Sandbox.ID == v.sandbox.ID {
		r.LastRepair, r.Listening = known.LastRepair, known.Listening
	}
	programmed := status == StatusInitialized || reason == ReasonContended || reason == ReasonPreempted
	if programmed && v.want != nil {
		r.SpecHash, r.Notes = v.want.hash, strings.Join(v.intent.Notes, "\n")
	}
	v.Reporter.Report(r)
}

// reportProgrammed reports a pod whose rules are in force. message is for one whose rules no other project touches.
func (v *visit) reportProgrammed(found Findings, message string) {
	switch {
	case found.Preempted != "":
		v.report(StatusFailed, ReasonPreempted, "rules of others decide about the pod's packets before ours: "+strings.ReplaceAll(found.Preempted, "\n", "; "))
	case found.contention.contended():
		v.report(StatusFailed, ReasonContended, "somebody keeps changing the rules, and they are put back with growing pauses of up to "+lastPause.String()+
			": a process of the pod or of the node; the events "+ReasonRulesRepaired+" say what differed")
	case !v.proxyReady():
		v.report(StatusInitialized, ReasonProxyNotReady, message+", and the proxy is not ready; see the pod's Sidecar")
	default:
		v.report(StatusInitialized, ReasonInitialized, message)
	}
}

// reportEvent queues a report without a status, which also becomes an event.
func (v *visit) reportEvent(reason, message string) {
	v.Reporter.Report(Report{
		Sandbox: v.sandbox, Reason: reason, Message: message, Event: true, Entrance: v.by, Backend: v.BackendName,
	})
}

// reportNotRequired reports that a pod gets no rules, if it asked for some, waits for our readiness gate, or has another report.
func (v *visit) reportNotRequired() {
	c := findCondition(v.pod)
	switch {
	case c != nil && c.Status == corev1.ConditionTrue && c.Reason == ReasonRemoved && !reported(v.pod) && v.intent.Removes():
		// The removal was reported already.
	case v.intent.Asked:
		v.reportEvent(ReasonNotRequired, string(v.intent.Reason))
	case gated(v.pod) || reported(v.pod):
		v.report("", ReasonNotRequired, string(v.intent.Reason))
	}
}

// reportKept replaces a failure report on a pod that no longer asks for rules but still has them. known is nil if the agent
// does not know the rules.
func (v *visit) reportKept(known *compiled, found Findings) {
	c := findCondition(v.pod)
	if found == (Findings{}) && Status(v.pod.Annotations[KeyStatus]) == StatusInitialized && c != nil && c.Status == corev1.ConditionTrue {
		return
	}
	if known != nil {
		v.intent, v.want = intent.Intent{Redirect: true, Spec: known.spec}, known
	}
	v.reportProgrammed(found, "the pod no longer asks for rules; they stay until the pod opts out")
}
