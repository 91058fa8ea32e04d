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

// refuse reports a fault that the pod's owner has to correct. Existing rules stay, and are repaired.
func (v *visit) refuse(ctx context.Context, wrong error) (Result, error) {
	kept, err := v.keepRules(ctx)
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

// fail handles work in the kernel that did not succeed. A sandbox that is not there (yet, or any more) is no failure.
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

// unanswered reports whether work in the kernel ended because the agent ran out of time, descriptors or memory, before it knew whether
// the rules are in force. In these cases the kernel has not refused anything.
func unanswered(err error) bool {
	var differ notPutBackError
	return !errors.As(err, &differ) && slices.ContainsFunc([]error{
		context.DeadlineExceeded, os.ErrDeadlineExceeded, context.Canceled, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM,
	}, func(reason error) bool { return errors.Is(err, reason) })
}

// unknown handles an error after which the state of the sandbox is not known. If the rules are in force, the report stays and the
// next visit tries again: rules work without the runtime and the API server. Otherwise it reports a failure.
func (v *visit) unknown(ctx context.Context, err error) (Result, error) {
	if absent(err) {
		return v.absent(ctx, err)
	}
	if v.inForce(ctx) {
		v.record(func() { v.Ledger.Retry(v.sandbox) })
	} else {
		v.reportFailure(err)
	}
	return Failed, err
}

// inForce reports whether the pod's rules are in force. The pod's condition counts unless the kernel contradicts it. The ledger alone
// counts only if the kernel confirms it.
func (v *visit) inForce(ctx context.Context) bool {
	c := findCondition(v.pod)
	reportedTrue := c != nil && c.Status == corev1.ConditionTrue && c.Reason == ReasonInitialized
	known, ok := v.Ledger.Of(v.sandbox.UID)
	switch {
	case !ok || known.Sandbox.NetNS == "":
		return reportedTrue
	case !reportedTrue && (known.State != Programmed || !v.matches(known.Sandbox)):
		return false
	}
	present, err := v.present(ctx, known.Sandbox)
	return present || reportedTrue && err != nil && !errors.Is(err, podnet.ErrGone)
}

// absent handles a sandbox that is not there. A report about an older sandbox is replaced.
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

// takenDown reports whether the runtime has ended the sandbox since it was found. The runtime unmounts the namespace before it removes
// the path, which leads to a plain file in between. Only Watch and Verify ask: NRI and CNI call while the runtime is still making the
// sandbox, and does not list it yet.
func (v *visit) takenDown(ctx context.Context) bool {
	if v.sandbox.NetNS == "" || v.by != Watch && v.by != Verify {
		return false
	}
	now, err := v.askBriefly(ctx)
	return absent(err) || err == nil && now.ID != v.sandbox.ID
}

// reportStale reports whether the pod's report is about a sandbox that no longer exists. A sandbox that the runtime does not list may
// also still be in the making, with its rules in place; then its namespace exists.
func (v *visit) reportStale(ctx context.Context) bool {
	if !reported(v.pod) || v.sandbox.ID != "" || v.pod.DeletionTimestamp != nil {
		return false
	}
	known, ok := v.Ledger.Of(v.sandbox.UID)
	if !ok || known.Sandbox.NetNS == "" {
		return true
	}
	_, err := v.present(ctx, known.Sandbox)
	return err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// absent reports whether an error only means that a pod or its sandbox is not there (yet, or any more).
func absent(err error) bool {
	return errors.Is(err, podnet.ErrNotReady) || errors.Is(err, podnet.ErrGone) || errors.Is(err, podnet.ErrNoPod)
}
