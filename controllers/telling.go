package controllers

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/iptables"
)

// report queues what the pod's owner is told.
func (v *visit) report(status Status, reason, message string) {
	r := Report{
		Sandbox: v.sandbox, Status: status, Reason: reason, Message: message,
		Entrance: v.by, Backend: v.BackendName,
	}
	if status == StatusInitialized && v.intent.Redirect {
		r.SpecHash, r.Notes = v.intent.Spec.Hash(), strings.Join(v.intent.Notes, "\n")
	}
	v.Reporter.Report(r)
}

// tell queues a report without a status, which becomes an event, too.
func (v *visit) tell(reason, message string) {
	v.Reporter.Report(Report{
		Sandbox: v.sandbox, Reason: reason, Message: message, Event: true, Entrance: v.by, Backend: v.BackendName,
	})
}

// settle tells a pod that gets no rules so, if it asked for some, or waits for our readiness gate, or says something else.
func (v *visit) settle() {
	c := findCondition(v.pod)
	switch {
	case c != nil && c.Status == corev1.ConditionTrue && c.Reason == ReasonRemoved && !reported(v.pod) && v.intent.Removes():
		// It was told so when its rules were removed.
	case v.intent.Asked:
		v.tell(ReasonNotRequired, string(v.intent.Reason))
	case gated(v.pod) || reported(v.pod):
		v.report("", ReasonNotRequired, string(v.intent.Reason))
	}
}

// reportKept takes back a bad report of a pod that no longer asks, and whose rules are in force; spec is nil where the agent
// does not know it.
func (v *visit) reportKept(spec *iptables.Spec) {
	c := findCondition(v.pod)
	if Status(v.pod.Annotations[KeyStatus]) == StatusInitialized && c != nil && c.Status == corev1.ConditionTrue {
		return
	}
	if spec != nil {
		v.intent = intent.Intent{Redirect: true, Spec: *spec}
	}
	v.report(StatusInitialized, ReasonInitialized, "nobody asks any more; the rules stay until the pod opts out")
}
