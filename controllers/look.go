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

// looking is the entrance of Look. It is not early, and nothing counts it.
const looking Entrance = "inspect"

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
	// Want are the rules that should be in force, or nil. Kept means that they are those that the pod asked for earlier. Unknown means that
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
		seen, free := ticket.peek()
		if !free {
			return ErrBusy
		}
		v := &visit{Programmer: p, by: looking, sandbox: s, ticket: ticket, seen: seen}
		looked, err := v.look(ctx)
		if err == nil {
			err = read(ctx, looked)
		}
		if now, free := ticket.peek(); free && now == seen {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return ErrBusy
}

// peek returns how many turns were used so far, and whether none is under way.
func (k *ticket) peek() (used int, free bool) {
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	return k.used, !k.held
}

// look is ensure without its effects.
func (v *visit) look(ctx context.Context) (out Looked, err error) {
	if err := v.read(ctx); err != nil {
		return out, err
	}
	out.Config = v.config(ctx)
	v.intent, out.Invalid = intent.Of(v.pod, v.ns, out.Config)
	if out.Invalid == nil && v.intent.Refused != "" {
		out.Invalid = errors.New(v.intent.Refused)
	}
	out.Pod, out.Namespace, out.Intent = v.pod, v.ns, v.intent
	out.Entry, _ = v.Ledger.Of(v.sandbox.UID)
	if v.intent.Reason == intent.HostNetwork || v.intent.Reason == intent.Finished {
		out.Absent = errors.New(string(v.intent.Reason))
		return out, nil
	}
	v.sandbox = latest(v.sandbox, out.Entry.Sandbox)
	if err := v.find(ctx); err != nil {
		out.Absent = err
		return out, nil //nolint:nilerr // it is part of the answer
	}
	out.Sandbox = v.sandbox
	if v.intent.Redirect && !v.Config.Supports(v.sandbox.RuntimeHandler) {
		v.intent = intent.Intent{Reason: intent.UnsupportedRuntime, Asked: v.intent.Asked}
		out.Intent = v.intent
	}
	v.lookedFor(&out)
	return out, nil
}

// lookedFor fills in the rules that should be in force.
func (v *visit) lookedFor(out *Looked) {
	known := out.Entry
	if known.Sandbox.ID != v.sandbox.ID {
		known.compiled = nil
	}
	switch {
	case out.Invalid == nil && v.intent.Redirect:
		v.useNameservers()
		want, err := v.compiler.compile(v.intent.Spec)
		if err != nil {
			out.Invalid = err
			return
		}
		out.Want = &want.rules
	case out.Invalid == nil && v.intent.Removes():
	case known.compiled != nil:
		out.Want, out.Kept = &known.compiled.rules, true
	default:
		out.Unknown = true
	}
}

// latest returns the sandbox that the ledger has of the pod, or s if it has none.
func latest(s, known podnet.Sandbox) podnet.Sandbox {
	if known.UID == s.UID && known.NetNS != "" {
		return known
	}
	return s
}
