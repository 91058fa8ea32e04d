package controllers

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/iptables"
)

// apply applies rules within the turn. It returns what this call and earlier ones have found, and whether rules were written.
//
// Drift is what differs although the same Spec was programmed in the same sandbox: the first programming is none, nor is what follows an
// edit of annotations, nor what another agent of the node has written while it takes over from this one.
func (p *Programmer) apply(ctx context.Context, v visit, want *compiled) (found Findings, changed bool, err error) {
	known, _ := p.Ledger.Of(v.sandbox.UID)
	again := known.programmedAs(v.sandbox, want)
	var seen atomic.Pointer[iptables.Drift]
	outcome, err := p.Backend.Apply(iptables.OnDrift(ctx, func(d iptables.Drift) { seen.Store(&d) }), v.sandbox.Place(), want.rules)
	switch drift := seen.Load(); {
	case err == nil || outcome.Changed():
	case drift != nil && again:
		return found, false, repairError{*drift, err}
	default:
		return found, false, err
	}
	if known.Sandbox.ID == v.sandbox.ID {
		found = known.Findings
	}
	if err == nil {
		found.Preempted = truncate(strings.Join(outcome.Preempted, "\n"))
		found.accepted = found.Preempted != "" && intent.AcceptsForeignRules(v.ns, p.Config.Defaults)
	}
	switch {
	case !outcome.Changed():
		found.contention = found.contention.withoutRepair(time.Now())
	case !again:
	case found.handovers < mostHandovers && writtenByOther(v, want, p.BackendName):
		found.handovers++
	default: // the pod's details get it with the next report
		found = found.repairedNow(outcome.Drift)
		p.Metrics.repaired(outcome.Drift.Kinds())
		log.FromContext(ctx).Info("rules repaired", "sandbox", v.sandbox.ID, "netns", v.sandbox.NetNS, "kinds", found.LastRepair.Kinds, "drift", outcome.Drift.String())
		p.Reporter.Event(v.sandbox, podreport.ReasonRulesRepaired, repairText(outcome.Drift))
	}
	if err != nil { // a later step has failed; what was written counts all the same
		p.Ledger.found(v.sandbox.UID, found)
	}
	return found, outcome.Changed(), err
}

// programmedAs reports whether a sandbox was programmed with want.
func (e Entry) programmedAs(s podnet.Sandbox, want *compiled) bool {
	return e.Sandbox.ID == s.ID && e.compiled != nil && e.compiled.hash == want.hash
}

// checkedSoon is the longest interval at which a change of the pod needs no look of its own.
const checkedSoon = 15 * time.Second

// left reports whether a call of Watch may leave the look at the kernel to the pod's next check: pods that start change several times.
//
//   - The check comes soon, and finds nothing but drift: the rules' inputs are as before, and were fine.
//   - No other agent's report is on the pod.
//   - Contended rules are repaired at checks only.
func left(v visit, known Entry, want *compiled, checks schedule, backend string) bool {
	if v.by != Watch || known.Retry || checks.isDue(known) || !known.programmedAs(v.sandbox, want) {
		return false
	}
	soon := checks.interval > 0 && checks.interval <= checkedSoon
	fine := known.State == Programmed && known.Preempted == "" && known.Sandbox.NetNS == v.sandbox.NetNS
	return known.contention.active() || soon && fine && !writtenByOther(v, want, backend)
}

// mostHandovers bounds how many differences in a sandbox are taken for another agent's work: a pod's owner can write what
// writtenByOther reads.
const mostHandovers = 2

// writtenByOther reports whether the pod's report is about other rules in this sandbox than this agent's, or another backend's: two
// agents of a node overlap during an update, and the new one's settings may differ.
func writtenByOther(v visit, want *compiled, backend string) bool {
	said, ok := podreport.DetailsOn(v.pod)
	return ok && podreport.Status(v.pod.Annotations[podreport.KeyStatus]) == podreport.StatusInitialized &&
		said.Sandbox == v.sandbox.ID && said.SpecHash != "" && (said.SpecHash != want.hash || said.Backend != backend)
}
