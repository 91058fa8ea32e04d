package controllers

import (
	"context"
	"errors"
	"os"
	"slices"
	"syscall"

	"istio-pod-network-controller/internal/podnet"
)

// failureReason says why a call of Ensure failed. It is the value of a metric's label.
type failureReason string

// The reasons.
const (
	reasonAnnotation failureReason = "annotation" // the pod's owner has to correct it
	reasonAPI        failureReason = "api"        // pod or namespace could not be read
	reasonRuntime    failureReason = "runtime"    // the container runtime did not say where the sandbox is
	reasonTimeout    failureReason = "timeout"    // time, memory or descriptors ran out before the outcome was known
	reasonChanged    failureReason = "changed"    // somebody has changed the rules, and they could not be repaired
	reasonKernel     failureReason = "kernel"     // the kernel, or the programs of the iptables backend, refused
)

func failureReasons() []failureReason {
	return []failureReason{reasonAnnotation, reasonAPI, reasonRuntime, reasonTimeout, reasonChanged, reasonKernel}
}

// reasonError adds a reason to an error, and no text.
type reasonError struct {
	error
	reason failureReason
}

func (e reasonError) Unwrap() error { return e.error }

// timedOut reports whether the kernel did not answer in time, whatever else is wrong with the pod.
func timedOut(err error) bool {
	_, isMarked := errors.AsType[reasonError](err)
	return !isMarked && unanswered(err)
}

// reasonOf returns why a call failed.
func reasonOf(err error) failureReason {
	marked, isMarked := errors.AsType[reasonError](err)
	_, isChanged := errors.AsType[repairError](err)
	switch {
	case Permanent(err):
		return reasonAnnotation
	case isMarked:
		return marked.reason
	case isChanged:
		return reasonChanged
	case unanswered(err):
		return reasonTimeout
	}
	return reasonKernel
}

// Permanent reports whether an error of Ensure stays until the pod changes.
func Permanent(err error) bool {
	_, ok := errors.AsType[permanentError](err)
	return ok
}

// permanentError marks an error as permanent and adds no text, since the runtime shows the text to the pod's owner.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// RulesKept reports whether the pod keeps rules that were applied earlier, although Ensure returned this error.
func RulesKept(err error) bool {
	var kept keptError
	return errors.As(err, &kept)
}

// keptError is the error of a pod that keeps its rules.
type keptError struct{ error }

func (k keptError) Unwrap() error { return k.error }

// unanswered reports whether work in the kernel ended because the agent ran out of time, descriptors or memory, before it knew whether
// the rules are in force. In these cases the kernel has not refused anything.
func unanswered(err error) bool {
	var differ repairError
	return !errors.As(err, &differ) && slices.ContainsFunc([]error{
		context.DeadlineExceeded, os.ErrDeadlineExceeded, context.Canceled, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM,
	}, func(reason error) bool { return errors.Is(err, reason) })
}

// absent reports whether an error only means that a pod or its sandbox is not there (yet, or any more).
func absent(err error) bool {
	return errors.Is(err, podnet.ErrNotReady) || errors.Is(err, podnet.ErrGone) || errors.Is(err, podnet.ErrNoPod)
}
