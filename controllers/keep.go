package controllers

import (
	"context"
	"errors"

	"istio-pod-network-controller/internal/podnet"
)

// keep repairs the rules of a pod that no longer asks for rules, or whose annotations are wrong. It reports whether the pod has rules, and in which
// sandbox. If the ledger does not know the rules, it only checks whether any are present.
func (p *Programmer) keep(ctx context.Context, v visit) (s podnet.Sandbox, kept bool, err error) {
	known, ok := p.Ledger.Of(v.sandbox.UID)
	if ok && v.sandbox.NetNS == "" {
		v.sandbox = known.Sandbox
	}
	if v.sandbox.NetNS == "" {
		return v.sandbox, false, nil
	}
	if v.sandbox, err = (locator{p}).find(ctx, v); err == nil {
		kept, err = p.repair(ctx, v, known)
	}
	var others *podnet.ProgrammedByOthersError
	switch {
	case errors.Is(err, podnet.ErrGone):
		v.turn.ifLast(func() { p.Ledger.Forget(v.sandbox.ID) })
		return podnet.Sandbox{Namespace: v.sandbox.Namespace, Name: v.sandbox.Name, UID: v.sandbox.UID}, false, nil
	case errors.As(err, &others):
		return v.sandbox, false, nil
	}
	return v.sandbox, kept, err
}

// repair applies the rules that the ledger knows of the pod, within the turn. It reports whether the pod has rules.
func (p *Programmer) repair(ctx context.Context, v visit, known Entry) (bool, error) {
	ctx, end, err := v.begin(ctx)
	if err != nil {
		return false, err
	}
	defer end()
	switch {
	case known.compiled == nil || known.Sandbox.ID != v.sandbox.ID:
		return p.Backend.Present(ctx, v.sandbox.Place())
	case left(v, known, known.compiled, p.schedule(), p.BackendName):
		return true, nil
	}
	found, _, err := p.apply(ctx, v, known.compiled)
	if err != nil {
		return false, err
	}
	if found.Unheard != "" { // the proxy may have come
		v.intent.Spec = known.compiled.spec
		found, _ = unheard(ctx, p.Listeners, v, found, "")
	}
	p.Ledger.found(v.sandbox, found)
	return true, nil
}
