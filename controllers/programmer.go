// Package controllers is the agent's core: it decides what to do when a hook reports a pod's sandbox, remembers the outcome, and
// reports it to the pod's owner.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/outage"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/iptables"
)

// Backend puts rules into the network namespace at a place. Apply replaces everything that we own there, and returns
// what differed before. Present reports whether anything of ours is there. Remove removes it, and reports whether there was
// anything. None of them ever writes to the host's namespace. If the path now leads to another namespace, the error is
// podnet.ErrGone. If another project's rules are there, Apply writes nothing and returns a *podnet.ProgrammedByOthersError.
type Backend interface {
	Apply(ctx context.Context, at podnet.Place, want iptables.Ruleset) (iptables.Outcome, error)
	Present(ctx context.Context, at podnet.Place) (bool, error)
	Remove(ctx context.Context, at podnet.Place) (removed bool, err error)
}

// Namespaces identifies the network namespace that a path leads to. If it leads nowhere, the error is podnet.ErrGone.
type Namespaces interface {
	Identify(path string) (podnet.Identity, error)
}

// Finder completes a Sandbox, whose UID must be set, with what the container runtime knows of the pod's running sandbox. If there
// is none, the error is podnet.ErrNotReady.
type Finder interface {
	Find(ctx context.Context, pod podnet.Sandbox) (podnet.Sandbox, error)
}

// Pods reads pods and namespaces, from a cache that may be behind; Current and CurrentNamespace ask the API server. If a pod does not
// exist or has another UID, the error is podnet.ErrNoPod. It has four methods because two kinds are read in two ways by the same reader.
type Pods interface {
	Pod(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error)
	Current(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error)
	Namespace(ctx context.Context, name string) (*corev1.Namespace, error)
	CurrentNamespace(ctx context.Context, name string) (*corev1.Namespace, error)
}

// Reporter queues reports to pods' owners. Event makes an event about a pod, and changes nothing else on it. Forget drops what it
// remembers of a pod that was deleted. None of them waits for the API server.
type Reporter interface {
	Report(r Report)
	Event(s podnet.Sandbox, reason, message string)
	Forget(podUID string)
}

// Proxies runs the proxies of pods that have chosen a ProxyProfile. It has five methods because it is all that the core knows of proxies, and
// sidecars/node fills it as a whole.
type Proxies interface {
	// Managed returns what the rules need to know of the pod's proxy. The sandbox may have no ID yet. With profile "", the pod has chosen none: it
	// returns the proxy to which the pod's rules lead already, nil if they lead to none.
	Managed(ctx context.Context, s podnet.Sandbox, profile string, pod *corev1.Pod, ns *corev1.Namespace) *intent.ManagedProxy
	// Follow has the proxy of a sandbox looked after, and does not wait. With profile "", the pod has chosen none: only a proxy that it has
	// nevertheless is looked after. A call by Verify makes no new look at a sandbox whose proxy is looked after already.
	Follow(s podnet.Sandbox, by Hook, profile string)
	// Led is called after rules were applied, which then lead to the proxy of profile, or removed, with profile "".
	Led(s podnet.Sandbox, profile string)
	// Ready reports whether the proxy to which the rules lead answers; known is false until it was asked.
	Ready(s podnet.Sandbox) (ready, known bool)
	// Forget is for a pod that is gone.
	Forget(podUID string)
}

// Hook names where a call of Ensure comes from.
type Hook string

// The hooks. Watch and Verify are the agent's own; the container runtime calls NRI, and the CNI chain calls CNI.
const (
	Watch  Hook = "watch"
	Verify Hook = "verify"
	NRI    Hook = "nri"
	CNI    Hook = "cni"
)

// early reports whether the hook calls before the pod's first container exists.
func (e Hook) early() bool { return e == NRI || e == CNI }

// Result is the outcome of Ensure, and the value of a metric's label.
type Result string

// The results.
const (
	Changed   Result = "changed"
	Unchanged Result = "unchanged"
	Skipped   Result = "skipped"
	Failed    Result = "failed"
)

// Programmer makes the network namespace of a sandbox hold exactly the rules that its pod asks for:
//
//   - read the pod, whose UID must match, and compute its intent;
//   - find its sandbox if the hook does not know it, and identify its namespace: no later open may lead to another one;
//   - take the pod's turn: a call starts again if another one had the turn since it read the pod;
//   - let the backend apply or remove the whole of its rules, and remember the outcome;
//   - end the turn, decide what a failure means, and queue the report to the pod's owner.
//
// Only the kernel is worked on within a turn: a turn never includes a call to the runtime or the API server.
//
// Nothing is skipped because of the pod's report: the backend compares with the kernel. The ledger decides only whether a change of the
// pod is left to the next check, which comes soon (see left). If the runtime, the kernel or the API server cannot answer, a pod
// whose rules are in force does not fail: its report stays, and the next check tries again.
type Programmer struct {
	Config      intent.Config
	Backend     Backend
	BackendName string
	Namespaces  Namespaces
	Finder      Finder
	Pods        Pods
	Reporter    Reporter
	Ledger      *Ledger
	Metrics     *Metrics
	// VerifyInterval is the time between two checks of a pod's rules; 0 means that there are none.
	VerifyInterval time.Duration
	Announcers     Announcers
	// Proxies is nil if the agent runs none.
	Proxies Proxies
	// RequireProxies has early hooks refuse pods that have chosen a profile and cannot have its proxy. Otherwise they start without rules.
	RequireProxies bool
	// Contact is nil if it is not known whether Pods are behind.
	Contact *outage.Contact
	// Listeners is nil if reports name no listening ports.
	Listeners Listeners

	// requeue makes a pod due after a while; nil if there is no PodWatch.
	requeue func(s podnet.Sandbox, wait time.Duration)
	// revisit makes a pod due now; nil if there is no PodWatch.
	revisit    func(s podnet.Sandbox)
	tickOffset time.Duration // of the moments at which pods are due, from the clock's; random
	turns      turns
	compiler   compiler
}

// Ensure makes one sandbox hold the rules that its pod asks for. Namespace, Name and UID of s must be set. Errors that callers tell
// apart: podnet.ErrNotReady and podnet.ErrGone (try again soon), podnet.ErrNoPod, and those for which Permanent is true (try again
// when the pod changes). After any other error the PodWatch tries again.
func (p *Programmer) Ensure(ctx context.Context, by Hook, s podnet.Sandbox) (Result, error) {
	result, err := p.ensure(ctx, by, s, ensureTimeout)
	if wait := p.schedule().wait(p.Ledger.Of(s.UID)); wait > 0 && p.requeue != nil {
		p.requeue(s, wait)
	}
	return result, err
}

// ensure is Ensure with a limit of the time in the kernel.
func (p *Programmer) ensure(ctx context.Context, by Hook, s podnet.Sandbox, limit time.Duration) (result Result, err error) {
	defer func(start time.Time) { p.Metrics.ensured(by, result, err, time.Since(start)) }(time.Now())
	ticket := p.turns.join(s.UID)
	defer ticket.leave()
	for {
		ticket.mark()
		if result, err = p.attempt(ctx, visit{by: by, sandbox: s, limit: limit, turn: ticket}); !errors.Is(err, errOvertaken) {
			return result, err
		}
		if ctx.Err() != nil {
			return Failed, fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

// Revisit has a pod visited as after a change, and returns at once.
func (p *Programmer) Revisit(s podnet.Sandbox) {
	if p.revisit != nil {
		p.revisit(s)
	}
}

// schedule says when pods are checked.
func (p *Programmer) schedule() schedule {
	return schedule{interval: p.VerifyInterval, offset: p.tickOffset}
}

// Announcers are the hooks that can announce every new sandbox. Each function reports whether its hook does so at present.
type Announcers []func() bool

// announce reports whether some hook announces every new sandbox at present.
func (a Announcers) announce() bool {
	return slices.ContainsFunc(a, func(announces func() bool) bool { return announces() })
}

// Forget drops a sandbox that is gone; its rules went with its namespace.
func (p *Programmer) Forget(sandboxID string) { p.Ledger.Forget(sandboxID) }

// forgetPod drops everything that is remembered of a deleted pod.
func (p *Programmer) forgetPod(uid string) {
	p.Ledger.ForgetPod(uid)
	p.Reporter.Forget(uid)
	if p.Proxies != nil {
		p.Proxies.Forget(uid)
	}
}

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
		return found, false, notPutBackError{*drift, err}
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

// report sends a report to the pod's owner, with what the ledger knows of the sandbox. It is called within the turn, or by the last call.
func (p *Programmer) report(r Report) {
	r.Backend = p.BackendName
	if known, ok := p.Ledger.Of(r.Sandbox.UID); ok && r.Status != "" && known.Sandbox.ID == r.Sandbox.ID {
		r.LastRepair, r.Listening = known.LastRepair, known.Listening
	}
	p.Reporter.Report(r)
}

// Look calls read with what the agent knows of a pod. It never takes the pod's turn, so no call of Ensure waits for it. If one works on the pod
// meanwhile, read is called again; after some attempts, or if a call is under way, the error is ErrBusy.
func (p *Programmer) Look(ctx context.Context, s podnet.Sandbox, read func(context.Context, Looked) error) error {
	ticket := p.turns.join(s.UID)
	defer ticket.leave()
	for range lookAttempts {
		if !ticket.mark() {
			return ErrBusy
		}
		looked, err := p.look(ctx, visit{by: looking, sandbox: s, turn: ticket})
		if err == nil {
			err = read(ctx, looked)
		}
		if ticket.unchanged() {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return ErrBusy
}

// look is attempt without its effects.
func (p *Programmer) look(ctx context.Context, v visit) (out Looked, err error) {
	if v, err = p.read(ctx, v); err != nil {
		return out, err
	}
	out = Looked{Pod: v.pod, Namespace: v.ns, Config: withProxies(ctx, p.Config, p.Proxies, v.sandbox), Intent: v.intent, Invalid: v.wrong}
	if v.wrong == nil && v.intent.Refused != "" {
		out.Invalid = errors.New(v.intent.Refused)
	}
	out.Entry, _ = p.Ledger.Of(v.sandbox.UID)
	if v.intent.Reason == intent.HostNetwork || v.intent.Reason == intent.Finished {
		out.Absent = errors.New(string(v.intent.Reason))
		return out, nil
	}
	v.sandbox = latest(v.sandbox, out.Entry.Sandbox)
	if v.sandbox, out.Absent = (locator{p}).find(ctx, v); out.Absent != nil {
		return out, nil //nolint:nilerr // the error is a part of the answer
	}
	out.Sandbox = v.sandbox
	if v.intent.Redirect && !p.Config.Supports(v.sandbox.RuntimeHandler) {
		out.Intent = intent.Intent{Reason: intent.UnsupportedRuntime, Asked: v.intent.Asked}
	}
	known := out.Entry.compiled
	if out.Entry.Sandbox.ID != v.sandbox.ID {
		known = nil
	}
	switch {
	case out.Invalid == nil && out.Intent.Redirect:
		want, err := p.compiler.compile(specOf(v))
		if err != nil {
			out.Invalid = err
			return out, nil //nolint:nilerr // it is part of the answer
		}
		out.Want = &want.rules
	case out.Invalid == nil && out.Intent.Removes():
	case known != nil:
		out.Want, out.Kept = &known.rules, true
	default:
		out.Unknown = true
	}
	return out, nil
}
