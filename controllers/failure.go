package controllers

import (
	"context"
	"errors"
	"os"
	"slices"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/podnet"
)

// refuse reports what the pod's owner has to mend. Existing rules stay, and are repaired.
func (v *visit) refuse(ctx context.Context, wrong error) (Result, error) {
	kept, err := v.keep(ctx)
	if errors.Is(err, errOvertaken) {
		return Failed, err
	}
	v.record(func() {
		v.Ledger.Fail(v.sandbox, err != nil)
		v.report(StatusFailed, ReasonInvalidAnnotation, wrong.Error())
	})
	err = permanentError{errors.Join(wrong, err)}
	if kept {
		err = keptError{err}
	}
	return Failed, err
}

// fail is for work in the kernel that did not succeed. A sandbox that is only not there (yet, or any more) is no failure.
func (v *visit) fail(ctx context.Context, err error) (Result, error) {
	switch {
	case errors.Is(err, errOvertaken):
		return Failed, err
	case unanswered(err):
		return v.unknown(ctx, err)
	case !absent(err) && v.takenDown(ctx):
		err = errors.Join(podnet.ErrGone, err)
	}
	if absent(err) {
		return v.absent(ctx, err)
	}
	v.reportFailure(err)
	return Failed, err
}

// unanswered reports whether work in the kernel ended for a reason of the agent's own: it was out of time, descriptors or memory.
// The kernel has not said no.
func unanswered(err error) bool {
	return slices.ContainsFunc([]error{
		context.DeadlineExceeded, os.ErrDeadlineExceeded, context.Canceled, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM,
	}, func(reason error) bool { return errors.Is(err, reason) })
}

// unknown is for a sandbox of which nothing could be learnt. If it is programmed, and the kernel does not say otherwise, that
// stays: the rules do not depend on who can be asked at the moment.
func (v *visit) unknown(ctx context.Context, err error) (Result, error) {
	if absent(err) {
		return v.absent(ctx, err)
	}
	if v.stands(ctx) {
		v.record(func() { v.Ledger.Retry(v.sandbox) })
	} else {
		v.reportFailure(err)
	}
	return Failed, err
}

// stands reports whether the rules of the pod are in force, as the pod says or the agent remembers, and nothing speaks against
// it. A report that the pod does not show yet counts only with the kernel's word.
func (v *visit) stands(ctx context.Context) bool {
	c := findCondition(v.pod)
	told := c != nil && c.Status == corev1.ConditionTrue && c.Reason == ReasonInitialized
	known, ok := v.Ledger.Of(v.sandbox.UID)
	switch {
	case !ok || known.Sandbox.NetNS == "":
		return told
	case !told && (known.State != Programmed || !v.meant(known.Sandbox)):
		return false
	}
	present, err := v.Backend.Present(ctx, known.Sandbox.Place())
	return present || told && err != nil && !errors.Is(err, podnet.ErrGone)
}

// absent is for a sandbox that is not there: the report of an earlier one does not stand for it.
func (v *visit) absent(ctx context.Context, err error) (Result, error) {
	stale := v.reportStale(ctx)
	v.record(func() {
		if errors.Is(err, podnet.ErrGone) {
			v.Ledger.Forget(v.sandbox.ID)
		}
		if stale {
			v.report("", ReasonSandboxNotReady, "the pod's new sandbox has no rules yet")
		}
	})
	return Skipped, err
}

func (v *visit) reportFailure(err error) {
	v.record(func() {
		v.Ledger.Fail(v.sandbox, true)
		v.report(StatusFailed, ReasonRedirectFailed, err.Error())
	})
}

// takenDown reports whether the runtime has ended the sandbox since it was found. It unmounts the namespace before it removes
// the path, which leads to a plain file meanwhile. Other entrances than these two come while the runtime still makes the
// sandbox, and does not answer for it.
func (v *visit) takenDown(ctx context.Context) bool {
	if v.sandbox.NetNS == "" || v.by != Watch && v.by != Sweep {
		return false
	}
	now, err := v.ask(ctx)
	return absent(err) || err == nil && now.ID != v.sandbox.ID
}

// reportStale reports whether the pod's report speaks of a sandbox that is no more. One that the runtime does not tell of may
// also be in the making still, with its rules in place: its namespace lives.
func (v *visit) reportStale(ctx context.Context) bool {
	if !reported(v.pod) || v.sandbox.ID != "" || v.pod.DeletionTimestamp != nil {
		return false
	}
	known, ok := v.Ledger.Of(v.sandbox.UID)
	if !ok || known.Sandbox.NetNS == "" {
		return true
	}
	_, err := v.Backend.Present(ctx, known.Sandbox.Place())
	return err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// absent reports whether an error only says that a pod or its sandbox is not there (yet, or any more).
func absent(err error) bool {
	return errors.Is(err, podnet.ErrNotReady) || errors.Is(err, podnet.ErrGone) || errors.Is(err, podnet.ErrNoPod)
}
