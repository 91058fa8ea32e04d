package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/outage"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

// attempt is one visit: read, decide, find, apply, report.
func (p *Programmer) attempt(ctx context.Context, v visit) (Result, error) {
	v, err := p.read(ctx, v)
	if errors.Is(err, podnet.ErrNoPod) {
		p.forgetPod(v.sandbox.UID)
		return Skipped, err
	}
	var out outcome
	switch {
	case err != nil:
		out = outcome{result: Failed, err: err, note: retry(v.sandbox)}
	case v.wrong != nil:
		out = p.refuse(ctx, v)
	case v.intent.Refused != "" || v.intent.Later:
		out = p.withoutProxy(ctx, v)
	case v.intent.Redirect:
		out = p.program(ctx, v)
	case v.intent.Removes():
		out = p.remove(ctx, v)
	default:
		out = p.skip(ctx, v)
	}
	p.askLate(ctx, v)
	v.turn.ifLast(func() {
		if out.note != nil {
			out.note(p.Ledger)
		}
		if out.report != nil {
			p.report(*out.report)
		}
	})
	return out.result, out.err
}

// read returns the visit with pod, namespace and intent. An early hook does not trust the cache if the pod may ask by now: it must not start
// without rules.
func (p *Programmer) read(ctx context.Context, v visit) (visit, error) {
	known, isKnown := p.Ledger.Of(v.sandbox.UID)
	if isKnown && v.by == Verify { // no question to the runtime
		v.sandbox = known.Sandbox
	}
	var err error
	if v.pod, err = p.Pods.Pod(ctx, v.sandbox); err != nil {
		return v, fmt.Errorf("read pod: %w", reasonError{err, reasonAPI})
	}
	if v.ns, err = p.Pods.Namespace(ctx, v.sandbox.Namespace); err != nil {
		return v, fmt.Errorf("read namespace: %w", reasonError{err, reasonAPI})
	}
	config := withProxies(ctx, p.Config, p.Proxies, v.sandbox)
	if v.by.early() {
		v.pod = asPending(v.pod)
	}
	v.intent, v.wrong = intent.Of(v.pod, v.ns, config)
	if at := p.kept(); v.intent.Redirect && !at.IsZero() {
		v.intent.Notes = append(slices.Clip(v.intent.Notes), "the API server was away, so the pod was given what its namespace asked for when it was last seen, at "+at.UTC().Format(time.RFC3339))
	}
	first := v.by.early() && (!isKnown || known.State != Removed || known.Sandbox.ID != v.sandbox.ID) // no call has removed rules, or found none
	if v.wrong != nil || !first || !v.intent.Removes() && !mayAskByNow(v, config, p.Contact, p.Proxies != nil) {
		return v, nil //nolint:nilerr // what is wrong with the pod is a part of the visit
	}
	pod, ns, err := askCurrent(ctx, p.Pods, v, config)
	switch {
	case err == nil:
		v.pod, v.ns, v.current = asPending(pod), ns, true
		v.intent, v.wrong = intent.Of(v.pod, v.ns, config)
	case v.intent.Removes() && !errors.Is(err, podnet.ErrNoPod): // a pod that is gone stays as it was read
		return v, err
	}
	return v, nil
}

// mayAskByNow reports whether the cache is known to be behind, and the pod would ask if its namespace had an annotation that it lacks there. Pods
// without a proxy would not: they start without a request while the API server is away.
func mayAskByNow(v visit, config intent.Config, contact *outage.Contact, proxies bool) bool {
	if v.intent.Redirect || contact == nil || contact.Err() == nil {
		return false
	}
	asking := &corev1.Namespace{}
	asking.Name, asking.Annotations = v.pod.Namespace, map[string]string{intent.KeyInitialize: "true"}
	would, err := intent.Of(v.pod, asking, config)
	return err != nil || would.Redirect || proxies && would.Reason == intent.NoProxy
}

// askCurrent returns pod and namespace as they are now. Of a pod that opts out the namespace is not asked for: only the pod decides about that.
func askCurrent(ctx context.Context, pods Pods, v visit, config intent.Config) (pod *corev1.Pod, ns *corev1.Namespace, err error) {
	if pod, err = pods.Current(ctx, v.sandbox); err == nil {
		if now, errNow := intent.Of(pod, v.ns, config); errNow == nil && now.Reason == intent.OptedOut {
			return pod, v.ns, nil
		}
		ns, err = pods.CurrentNamespace(ctx, v.sandbox.Namespace)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("ask whether the pod still opts out: %w", reasonError{err, reasonAPI})
	}
	return pod, ns, nil
}

// program has the pod's rules put in force. Within the turn it also remembers and reports them.
func (p *Programmer) program(ctx context.Context, v visit) outcome {
	var err error
	if v.sandbox, err = (locator{p}).find(ctx, v); err != nil {
		return p.unknown(ctx, v, err)
	}
	if !p.Config.Supports(v.sandbox.RuntimeHandler) {
		v.intent = intent.Intent{Reason: intent.UnsupportedRuntime, Asked: v.intent.Asked}
		return p.skip(ctx, v)
	}
	inTurn, end, err := v.begin(ctx)
	if err != nil {
		return p.fail(ctx, v, fmt.Errorf("apply rules: %w", err))
	}
	defer end()
	known, _ := p.Ledger.Of(v.sandbox.UID) // before the turn, the call that had it may still have decided otherwise
	h, late := holdOf(inTurn, p.Listeners, p.Proxies, known, v)
	want, err := p.compiler.compile(specOf(v), h.in)
	if err != nil {
		end()
		v.wrong = err
		return p.refuse(ctx, v)
	}
	next, changed := Entry{Sandbox: v.sandbox, State: Programmed, compiled: want, hold: h}, false
	if known.State == Programmed && left(v, known, want, p.schedule(), p.BackendName) {
		next.Findings, next.checked = known.Findings, known.checked
	} else if next.Findings, changed, err = p.apply(inTurn, v, want); err != nil {
		end()
		if others, ok := errors.AsType[*podnet.ProgrammedByOthersError](err); ok {
			return leftToOthers(v, others)
		}
		return p.fail(ctx, v, fmt.Errorf("apply rules: %w", err))
	}
	news := ""
	if next.Findings, news = listening(inTurn, p.Listeners, v, next.Findings); news != "" {
		p.Reporter.Event(v.sandbox, podreport.ReasonListening, news)
	}
	if next.Findings, news = unheard(inTurn, p.Listeners, v, next.Findings, late); news != "" {
		p.Reporter.Event(v.sandbox, podreport.ReasonNoListener, news)
	}
	park(inTurn, p.Parking, known, v, h)
	if late != "" {
		p.Reporter.Event(v.sandbox, podreport.ReasonProxyLate, late)
	}
	if p.Ledger.Put(next) {
		led(p.Proxies, v.sandbox, v.intent.LeadsTo)
		r := programmed(v, want, next.Findings, proxyReady(p.Proxies, v), "traffic is redirected")
		r.Held = h.held()
		p.report(r)
		follow(p.Proxies, v, v.intent.Profile)
	}
	if !changed {
		return outcome{result: Unchanged}
	}
	log.FromContext(ctx).Info("rules applied", "sandbox", v.sandbox.ID, "netns", v.sandbox.NetNS, "specHash", want.hash)
	return outcome{result: Changed}
}

// leftToOthers is how a visit to a pod ends whose traffic another project redirects. The pod is checked again like any other.
func leftToOthers(v visit, others *podnet.ProgrammedByOthersError) outcome {
	return outcome{
		result: Skipped, report: eventReport(v, podreport.ReasonProgrammedByOthers, others.Error()),
		note: func(l *Ledger) { l.Put(Entry{Sandbox: v.sandbox, State: ByOthers}) },
	}
}

// remove removes the rules. Only the pod's own annotation "false", and the interception mode NONE, lead here.
func (p *Programmer) remove(ctx context.Context, v visit) outcome {
	var err error
	if v.sandbox, err = (locator{p}).find(ctx, v); absent(err) {
		return outcome{result: Skipped, report: notRequired(v)} // no sandbox, no rules
	} else if err != nil {
		return p.unknown(ctx, v, err)
	}
	if outdated, err := outdated(ctx, p.Backend, p.Pods, v, withProxies(ctx, p.Config, p.Proxies, v.sandbox)); err != nil {
		return unseen(ctx, v, err)
	} else if outdated {
		return outcome{result: Skipped} // the cache will follow
	}
	inTurn, end, err := v.begin(ctx)
	if err != nil {
		return p.fail(ctx, v, fmt.Errorf("remove rules: %w", err))
	}
	defer end()
	removed, err := p.Backend.Remove(inTurn, v.sandbox.Place())
	if err != nil {
		end()
		return p.fail(ctx, v, fmt.Errorf("remove rules: %w", err))
	}
	leave(p.Parking, v.sandbox.ID)
	led(p.Proxies, v.sandbox, nil)
	follow(p.Proxies, v, "")
	before, known := p.Ledger.Of(v.sandbox.UID)
	said := known && before.State == Removed && before.Sandbox.ID == v.sandbox.ID // then the pod has the report already
	out := outcome{result: Unchanged}
	if removed {
		out = outcome{result: Changed, report: new(reportOf(v, podreport.StatusRemoved, podreport.ReasonRemoved, string(v.intent.Reason)))}
		log.FromContext(ctx).Info("rules removed", "sandbox", v.sandbox.ID, "netns", v.sandbox.NetNS)
	} else if !said {
		out.report = notRequired(v)
	}
	if p.Ledger.Put(Entry{Sandbox: v.sandbox, State: Removed}) && out.report != nil {
		p.report(*out.report)
	}
	return outcome{result: out.result}
}

// outdated reports whether there are rules that must stay, because by now the pod does not opt out any more, or is gone. After an outage the
// watch sends each change since, in order: a pod that opted out and in again must keep its rules. What a pod that is gone asked for last is not
// known, and its containers may run for a while.
func outdated(ctx context.Context, b Backend, pods Pods, v visit, config intent.Config) (bool, error) {
	if v.current {
		return false, nil
	}
	present, err := hasRules(ctx, b, v.sandbox, v.limit)
	if err != nil || !present {
		return false, nil //nolint:nilerr // the removal meets the same error, and knows what it means
	}
	pod, ns, err := askCurrent(ctx, pods, v, config)
	if errors.Is(err, podnet.ErrNoPod) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	wants, err := intent.Of(pod, ns, config)
	return err != nil || !wants.Removes(), nil //nolint:nilerr // with a wrong annotation rules stay
}

// skip leaves a pod without a request for rules alone. Rules that it got earlier stay. A report of rules is replaced once their
// sandbox is gone, and a report of failure once the pod no longer asks.
func (p *Programmer) skip(ctx context.Context, v visit) outcome {
	log.FromContext(ctx).V(1).Info("pod skipped", "reason", v.intent.Reason)
	forget := func(l *Ledger) { l.ForgetPod(v.sandbox.UID) }
	switch v.intent.Reason {
	case intent.Finished: // it waits for no readiness gate
		return outcome{result: Skipped, note: forget}
	case intent.HostNetwork, intent.UnsupportedRuntime: // no packet meets rules of ours, whatever its report says
		return outcome{result: Skipped, note: forget, report: notRequired(v)}
	}
	if _, ok := p.Ledger.Of(v.sandbox.UID); !ok && !reported(v.pod) {
		return outcome{result: Skipped, report: notRequired(v)}
	}
	var err error
	if v.sandbox, err = (locator{p}).find(ctx, v); absent(err) { // an event follows when the new sandbox runs
		return outcome{result: Skipped, note: forget}
	} else if err != nil {
		return unseen(ctx, v, err)
	}
	kept := false
	if v.sandbox, kept, err = p.keep(ctx, v); err != nil {
		return unseen(ctx, v, err)
	}
	if kept {
		known, _ := p.Ledger.Of(v.sandbox.UID) // with what was found just now
		return outcome{result: Skipped, note: keeps(v.sandbox, known), report: keptReport(v, known, proxyReady(p.Proxies, v))}
	}
	v.turn.ifLast(func() { led(p.Proxies, v.sandbox, nil); follow(p.Proxies, v, "") }) // a proxy that was to be its first one ends
	out := outcome{result: Skipped, note: forget, report: notRequired(v)}
	// A report comes with the condition. The controller of 2018 wrote the annotation alone.
	if podreport.Status(v.pod.Annotations[podreport.KeyStatus]) == podreport.StatusInitialized && findCondition(v.pod) != nil {
		out.report = new(reportOf(v, podreport.StatusRemoved, podreport.ReasonRemoved, "the sandbox that had rules is gone, and the new one gets none: "+string(v.intent.Reason)))
	}
	return out
}
