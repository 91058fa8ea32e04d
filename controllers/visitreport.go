package controllers

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

// reportOf returns a report of a visit. A failure says what an earlier agent has learned of the start of the sandbox's rules.
func reportOf(v visit, status podreport.Status, reason, message string) Report {
	r := Report{Sandbox: v.sandbox, Status: status, Reason: reason, Message: message, Hook: v.by, PodVersion: v.pod.ResourceVersion}
	if status == podreport.StatusFailed {
		r.Late = Findings{}.learned(v).lateText()
	}
	return r
}

// programmed returns the report of a pod whose rules are in force; want is nil if the agent does not know them. message is for a pod whose rules
// no other project touches.
func programmed(v visit, want *compiled, found Findings, proxyReady bool, message string) Report {
	var r Report
	if found.Unheard != "" {
		message += "; " + found.Unheard
	}
	switch {
	case found.Preempted != "" && !found.accepted:
		r = reportOf(v, podreport.StatusFailed, podreport.ReasonPreempted, "rules of others decide about the pod's packets before ours: "+strings.ReplaceAll(found.Preempted, "\n", "; "))
	case found.contention.contended():
		r = reportOf(v, podreport.StatusFailed, podreport.ReasonContended, "somebody keeps changing the rules, and they are repaired with growing pauses of up to "+lastPause.String()+
			": a process of the pod or of the node; the events "+podreport.ReasonRulesRepaired+" say what differed")
	case !proxyReady:
		r = reportOf(v, podreport.StatusInitialized, podreport.ReasonProxyNotReady, message+", and the proxy is not ready; see the pod's ManagedProxy")
	case found.Unheard != "":
		r = reportOf(v, podreport.StatusInitialized, podreport.ReasonNoListener, message)
	default:
		r = reportOf(v, podreport.StatusInitialized, podreport.ReasonInitialized, message)
	}
	if want != nil {
		r.SpecHash, r.Notes = want.hash, found.notes(v.intent.Notes)
	} else { // nor does the ledger know of their start
		r.Late = Findings{}.learned(v).lateText()
	}
	return r
}

// eventReport returns a report without a status, which also becomes an event.
func eventReport(v visit, reason, message string) *Report {
	return &Report{Sandbox: v.sandbox, Reason: reason, Message: message, Event: true, Hook: v.by}
}

// notRequired returns the report of a pod that gets no rules, if it asked for some, waits for our readiness gate, or has another report; else nil.
func notRequired(v visit) *Report {
	c := findCondition(v.pod)
	switch {
	case c != nil && c.Status == corev1.ConditionTrue && c.Reason == podreport.ReasonRemoved && !reported(v.pod) && v.intent.Removes():
		// The removal was reported already.
	case v.intent.Asked:
		return eventReport(v, podreport.ReasonNotRequired, string(v.intent.Reason))
	case gated(v.pod) || reported(v.pod):
		return new(reportOf(v, "", podreport.ReasonNotRequired, string(v.intent.Reason)))
	}
	return nil
}

// keptReport returns a report in place of a failure on a pod that no longer asks for rules but still has them, or nil.
func keptReport(v visit, known Entry, proxyReady bool) *Report {
	c, quiet := findCondition(v.pod), known.Findings
	quiet.unheardAt, quiet.missing, quiet.late, quiet.rulesAt = time.Time{}, false, 0, time.Time{}
	fine := c != nil && c.Status == corev1.ConditionTrue && c.Reason != podreport.ReasonNoListener
	if fine && quiet == (Findings{}) && podreport.Status(v.pod.Annotations[podreport.KeyStatus]) == podreport.StatusInitialized {
		return nil
	}
	if known.compiled != nil {
		v.intent, proxyReady = intent.Intent{Redirect: true, Spec: known.compiled.spec}, true
	}
	return new(programmed(v, known.compiled, known.Findings, proxyReady, "the pod no longer asks for rules; they stay until the pod opts out"))
}

// retry has a pod visited again soon.
func retry(s podnet.Sandbox) func(*Ledger) { return func(l *Ledger) { l.Mark(s, "", true) } }

// keeps notes a pod that keeps the rules that the ledger knows.
func keeps(s podnet.Sandbox, known Entry) func(*Ledger) {
	return func(l *Ledger) {
		l.Put(Entry{Sandbox: s, State: Programmed, compiled: known.compiled, Findings: known.Findings, hold: heldNow(known, s)})
	}
}
