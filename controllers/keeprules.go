package controllers

import (
	"context"
	"errors"

	"istio-pod-network-controller/internal/podnet"
)

// keepRules repairs the rules of a pod that no longer asks for rules, or whose annotations are wrong. It reports whether the pod has
// rules. If the ledger does not know them, it only checks whether any are present.
func (v *visit) keepRules(ctx context.Context) (kept bool, err error) {
	known, ok := v.Ledger.Of(v.sandbox.UID)
	if ok && v.sandbox.NetNS == "" {
		v.sandbox = known.Sandbox
	}
	if v.sandbox.NetNS == "" {
		return false, nil
	}
	if err = v.find(ctx); err == nil {
		err = v.inTurn(ctx, func(ctx context.Context) (err error) {
			if known.compiled == nil || known.Sandbox.ID != v.sandbox.ID {
				kept, err = v.Backend.Present(ctx, v.sandbox.Place())
				return err
			}
			err = v.repair(ctx, known)
			kept = err == nil
			return err
		})
	}
	var others *podnet.ProgrammedByOthersError
	switch {
	case errors.Is(err, podnet.ErrGone):
		v.record(func() { v.Ledger.Forget(v.sandbox.ID) })
		v.sandbox = podnet.Sandbox{Namespace: v.sandbox.Namespace, Name: v.sandbox.Name, UID: v.sandbox.UID}
		return false, nil
	case errors.As(err, &others):
		return false, nil
	}
	return kept, err
}

// repair applies the rules that the pod got earlier.
func (v *visit) repair(ctx context.Context, known Entry) error {
	if v.left(known.compiled) {
		return nil
	}
	found, _, err := v.apply(ctx, known.compiled)
	if err == nil {
		v.Ledger.found(v.sandbox.UID, found)
	}
	return err
}
