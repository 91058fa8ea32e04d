package controllers

import (
	"context"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/iptables"
)

// startLimit bounds the question when containers were started.
const startLimit = time.Second

// learned returns the findings with those of an earlier agent in the same sandbox, as the pod shows them: what this agent has found itself comes first.
func (f Findings) learned(v visit) Findings {
	said, ok := podreport.DetailsOn(v.pod)
	if !ok || said.Sandbox != v.sandbox.ID {
		return f
	}
	if late, err := time.ParseDuration(said.Late); err == nil && late > 0 && f.late == 0 {
		f.late = late
	}
	if c := findCondition(v.pod); f.unheardAt.IsZero() && c != nil && c.Reason == podreport.ReasonNoListener {
		f.Unheard = podreport.Unheard(c.Message)
	}
	return f
}

// areFirst reports whether rules that were put into a sandbox just now are its first ones, and its containers may run already. A report of rules in the
// sandbox means that it has lost them; a failed one has their hash if they were in force.
func areFirst(v visit, drift iptables.Drift) bool {
	kinds := drift.Kinds()
	if v.by.early() || !slices.Contains(kinds, iptables.KindAbsent) || slices.Contains(kinds, iptables.KindBackend) {
		return false
	}
	said, ok := podreport.DetailsOn(v.pod)
	return !ok || said.Sandbox != v.sandbox.ID ||
		said.SpecHash == "" && podreport.Status(v.pod.Annotations[podreport.KeyStatus]) != podreport.StatusInitialized
}

// askLate asks the runtime, after the first rules of a sandbox, whether a container was started before them. Without an answer the next visit asks, but
// for an early hook's, for which the runtime waits.
func (p *Programmer) askLate(ctx context.Context, v visit) {
	known, _ := p.Ledger.Of(v.sandbox.UID)
	if p.Starts == nil || v.by.early() || known.rulesAt.IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	first, err := p.Starts.FirstStart(ctx, known.Sandbox.ID, func(container string) bool { return !intent.MayStartFirst(v.pod, container) })
	if err != nil {
		log.FromContext(ctx).V(1).Info("not known when containers were started", "reason", err.Error())
		return
	}
	late := time.Duration(0)
	if !first.IsZero() && first.Before(known.rulesAt) {
		late = max(time.Millisecond, known.rulesAt.Sub(first).Round(time.Millisecond))
		if late >= time.Minute { // a second says enough
			late = late.Round(time.Second)
		}
	}
	if p.Ledger.asked(known, late) && late > 0 {
		p.Reporter.Event(known.Sandbox, podreport.ReasonStartedFirst, "its first container had been running for "+late.String()+
			" when its rules came into force: connections that it opened before go past the proxy until they end; re-create the pod if that matters")
		p.Revisit(known.Sandbox)
	}
}
