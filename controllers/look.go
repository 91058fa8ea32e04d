package controllers

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
)

// ErrBusy means that a call of Ensure works on the pod: what is read meanwhile may be half of a change.
var ErrBusy = errors.New("the agent is working on the pod right now")

// looking is the hook of Look. It is not early, and nothing counts it.
const looking Hook = "inspect"

// lookAttempts is how often Look reads again what has changed while it read.
const lookAttempts = 3

// Looked is what the agent knows of a pod, and what it wants in the pod's namespace.
type Looked struct {
	Pod       *corev1.Pod
	Namespace *corev1.Namespace
	Config    intent.Config
	Intent    intent.Intent
	// Invalid says which setting cannot be followed.
	Invalid error
	// Sandbox is the pod's; Absent says why there is none to look at.
	Sandbox podnet.Sandbox
	Absent  error
	// Entry is the ledger's; its zero value if the ledger does not know the pod.
	Entry Entry
	// Want are the rules that should be in force, or nil. Kept means that the pod asked for them earlier. Unknown means that
	// rules that the pod got earlier may be in force, and that this agent does not know which.
	Want          *iptables.Ruleset
	Kept, Unknown bool
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
	if known := out.Entry.Sandbox; known.NetNS != "" {
		v.sandbox = known
	}
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
		want, err := p.compiler.compile(specOf(v), heldNow(out.Entry, v.sandbox).in)
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
