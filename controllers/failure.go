package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

// refuse ends a visit with a fault that the pod's owner has to correct. Existing rules stay, and are repaired: what somebody gets wrong in a running
// pod's annotations is a note, and takes the pod out of no Service. Rules that cannot tell the proxy from the application are no rules to rely on.
func (p *Programmer) refuse(ctx context.Context, v visit) outcome {
	s, kept, errKeep := p.keep(ctx, v)
	if errors.Is(errKeep, errOvertaken) {
		return outcome{result: Failed, err: errKeep}
	}
	v.sandbox = s
	reason := podreport.ReasonInvalidAnnotation
	if _, unknown := errors.AsType[*intent.OwnerError](v.wrong); unknown {
		reason = podreport.ReasonProxyUnknown
	}
	out := outcome{
		result: Failed, err: permanentError{errors.Join(v.wrong, errKeep)}, report: new(reportOf(v, podreport.StatusFailed, reason, v.wrong.Error())),
		note: func(l *Ledger) { l.Mark(s, InvalidPod, errKeep != nil) },
	}
	if !kept {
		return out
	}
	out.err = keptError{out.err}
	if known, _ := p.Ledger.Of(s.UID); reason == podreport.ReasonInvalidAnnotation {
		ready := true
		if p.Proxies != nil { // a wrong intent does not say whether the proxy is the agent's
			if now, runs := p.Proxies.Ready(s); runs {
				ready = now
			}
		}
		r := programmed(v, known.compiled, known.Findings, ready, "the rules are those of before a wrong edit")
		r.Notes = "without effect: " + v.wrong.Error()
		out.report = &r
	}
	return out
}

// withoutProxy ends a visit to a pod that has chosen a profile and gets no rules now. Existing rules stay, and are repaired.
//
//   - A pod that cannot have a proxy starts all the same, unless RequireProxies is set, and is not ready. If its proxy runs already it stays ready: a
//     profile that is taken away takes no pod out of its Services.
//   - A pod that ran already when it chose its first proxy gets rules once that is ready (Later). Until then it stays as it is.
func (p *Programmer) withoutProxy(ctx context.Context, v visit) outcome {
	var err error
	if v.sandbox, err = (locator{p}).find(ctx, v); err != nil && !absent(err) {
		return unseen(ctx, v, err)
	}
	kept := false
	if v.sandbox, kept, err = p.keep(ctx, v); errors.Is(err, errOvertaken) {
		return outcome{result: Failed, err: err}
	}
	v.turn.ifLast(func() { follow(p.Proxies, v, v.intent.Profile) }) // a profile that becomes usable is used at once
	if v.intent.Later {
		return outcome{result: Skipped, note: func(l *Ledger) { l.Mark(v.sandbox, "", err != nil) }}
	}
	if kept && proxyReady(p.Proxies, v) {
		known, _ := p.Ledger.Of(v.sandbox.UID) // with what was found just now
		r := programmed(v, nil, known.Findings, true, "traffic is redirected to the proxy, which runs on as it is: "+v.intent.Refused)
		return outcome{result: Skipped, note: keeps(v.sandbox, known), report: &r}
	}
	out := outcome{
		result: Skipped, report: new(reportOf(v, podreport.StatusFailed, podreport.ReasonProxyRefused, v.intent.Refused)),
		note: func(l *Ledger) { l.Mark(v.sandbox, InvalidPod, err != nil) },
	}
	if p.RequireProxies && v.by.early() && !kept {
		out.result, out.err = Failed, permanentError{errors.New(v.intent.Refused)}
	}
	return out
}

// fail decides what an error of work in the kernel means. A sandbox that is not there (yet, or any more) is no failure.
func (p *Programmer) fail(ctx context.Context, v visit, err error) outcome {
	switch {
	case errors.Is(err, errOvertaken):
		return outcome{result: Failed, err: err}
	case unanswered(err):
		return p.unknown(ctx, v, err)
	case !absent(err) && (locator{p}).takenDown(ctx, v):
		err = errors.Join(podnet.ErrGone, err)
	}
	if absent(err) {
		return p.unknown(ctx, v, err)
	}
	return failure(v, err)
}

// unknown decides what an error means after which the state of the sandbox is not known:
//
//   - if the sandbox is absent, a report about an older sandbox is replaced;
//   - if the rules are in force, the report stays and the next visit tries again: rules work without the runtime and the API server;
//   - otherwise it is a failure.
func (p *Programmer) unknown(ctx context.Context, v visit, err error) outcome {
	known, _ := p.Ledger.Of(v.sandbox.UID)
	switch {
	case absent(err):
		out := outcome{result: Skipped, err: err}
		if errors.Is(err, podnet.ErrGone) {
			out.note = func(l *Ledger) { l.Forget(v.sandbox.ID) }
		}
		if isStale(ctx, p.Backend, v, known.Sandbox) {
			out.report = new(reportOf(v, "", podreport.ReasonSandboxNotReady, "the pod's new sandbox has no rules yet"))
		}
		return out
	case inForce(ctx, p.Backend, v, known):
		return outcome{result: Failed, err: err, note: retry(v.sandbox)}
	}
	return failure(v, err)
}

// failure ends a visit with an error that its pod shows. It is tried again.
func failure(v visit, err error) outcome {
	return outcome{
		result: Failed, err: err, report: new(reportOf(v, podreport.StatusFailed, podreport.ReasonRedirectFailed, err.Error())),
		note: func(l *Ledger) { l.Mark(v.sandbox, FailedPod, true) },
	}
}

// unseen ends a visit to a pod that needs no rules, of which it could not be found out whether it has some. The pod may start, and gets no report.
func unseen(ctx context.Context, v visit, err error) outcome {
	switch {
	case errors.Is(err, errOvertaken):
		return outcome{result: Failed, err: err}
	case !v.by.early():
		return outcome{result: Failed, err: fmt.Errorf("look for rules: %w", err), note: retry(v.sandbox)}
	}
	log.FromContext(ctx).Error(err, "rules of a pod that needs none not looked for")
	return outcome{result: Skipped, note: retry(v.sandbox)}
}

// inForce reports whether the pod's rules are in force. The pod's condition counts unless the kernel contradicts it. The ledger alone
// counts only if the kernel confirms it.
func inForce(ctx context.Context, b Backend, v visit, known Entry) bool {
	c := findCondition(v.pod)
	reportedTrue := c != nil && c.Status == corev1.ConditionTrue && podreport.HasRules(c.Reason)
	switch {
	case known.Sandbox.NetNS == "":
		return reportedTrue
	case !reportedTrue && (known.State != Programmed || !v.matches(known.Sandbox)):
		return false
	}
	present, err := hasRules(ctx, b, known.Sandbox, v.limit)
	return present || reportedTrue && err != nil && !errors.Is(err, podnet.ErrGone)
}

// isStale reports whether the pod's report is about a sandbox that no longer exists. A sandbox that the runtime does not list may
// also still be in the making, with its rules in place; then its namespace exists.
func isStale(ctx context.Context, b Backend, v visit, known podnet.Sandbox) bool {
	if !reported(v.pod) || v.sandbox.ID != "" || v.pod.DeletionTimestamp != nil {
		return false
	}
	if known.NetNS == "" {
		return true
	}
	_, err := hasRules(ctx, b, known, v.limit)
	return err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// hasRules is Backend.Present outside a turn, within the limit of work in the kernel.
func hasRules(ctx context.Context, b Backend, s podnet.Sandbox, limit time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return b.Present(ctx, s.Place())
}
