package controllers

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/intent"
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
	if known.compiled == nil || known.Sandbox.ID != v.sandbox.ID { // this agent has put no rules there yet
		found = found.learned(v)
	}
	if !again && areFirst(v, outcome.Drift) {
		found.rulesAt = time.Now()
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
		p.Ledger.found(v.sandbox, found)
	}
	return found, outcome.Changed(), err
}
