// Package controllers is the agent's core: what to do when anything tells it about a pod's sandbox, what it remembers, and
// what it tells the pod's owner.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
)

// Backend puts rules into the network namespace at a place. Apply replaces the whole of what we own there and reports whether
// that changed anything; Present reports whether there is anything of ours; Remove takes it away and reports whether there was
// anything. None of them ever writes to the host's namespace. A path that leads to another namespace than the place's is
// podnet.ErrGone. Apply gives a *podnet.ProgrammedByOthersError, and writes nothing, where another project's rules are.
type Backend interface {
	Apply(ctx context.Context, at podnet.Place, want iptables.Ruleset) (changed bool, err error)
	Present(ctx context.Context, at podnet.Place) (bool, error)
	Remove(ctx context.Context, at podnet.Place) (removed bool, err error)
}

// Namespaces identifies the network namespace that a path leads to. A path that leads nowhere is podnet.ErrGone.
type Namespaces interface {
	Identify(path string) (podnet.Identity, error)
}

// Finder completes a Sandbox, of which it needs the UID, with what the container runtime knows of the pod's running
// sandbox. Without one the error is podnet.ErrNotReady.
type Finder interface {
	Find(ctx context.Context, pod podnet.Sandbox) (podnet.Sandbox, error)
}

// Pods reads pods and namespaces. A pod that is not there, or has another UID, is podnet.ErrNoPod.
type Pods interface {
	Pod(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error)
	Namespace(ctx context.Context, name string) (*corev1.Namespace, error)
}

// Reporter tells the pod's owner how it went, some time later. Forget drops what it remembers of a pod that is no more.
type Reporter interface {
	Report(r Report)
	Forget(podUID string)
}

// Entrance names who told the agent about a sandbox.
type Entrance string

// The entrances: the agent's own, and those by which the container runtime and the CNI chain call it.
const (
	Watch Entrance = "watch"
	Sweep Entrance = "sweep"
	NRI   Entrance = "nri"
	CNI   Entrance = "cni"
)

// early reports whether the entrance calls before the pod's first container exists.
func (e Entrance) early() bool { return e == NRI || e == CNI }

// Result is what Ensure came to, the value of a metric's label.
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
//   - read the pod, whose UID must match, and judge what it asks for;
//   - find its sandbox where the entrance does not know it, and identify its namespace, which no path may lead away from;
//   - take the pod's turn: early entrances come first, and who was overtaken since it read the pod starts again;
//   - have the backend apply, or take away, the whole of its rules, and remember the outcome;
//   - end the turn, ask what a failure means, and queue the report to the pod's owner.
//
// Only the kernel is worked on within a turn: it never lasts as long as a call to the runtime or the API server.
//
// Nothing is skipped because of what the pod's annotations report or what the ledger remembers: the backend compares with
// the kernel. What could not be asked is no failure of a pod whose rules stand: its report stays, and the sweep tries again.
type Programmer struct {
	Intent      intent.Config
	Backend     Backend
	BackendName string
	Namespaces  Namespaces
	Finder      Finder
	Pods        Pods
	Reporter    Reporter
	Ledger      *Ledger
	Metrics     *Metrics
	// Told says, one for each such entrance, whether the runtime tells by itself of every sandbox that it makes, at present.
	Told []func() bool

	turns turns
}

// Ensure converges one sandbox, of which Namespace, Name and UID are known at least. Errors that matter to callers are
// podnet.ErrNotReady and podnet.ErrGone (ask again soon), podnet.ErrNoPod, and those for which Permanent is true (ask when the pod
// changes). After any other error the sweep tries again by itself.
func (p *Programmer) Ensure(ctx context.Context, by Entrance, s podnet.Sandbox) (result Result, err error) {
	defer func(start time.Time) { p.Metrics.ensured(by, result, err, time.Since(start)) }(time.Now())
	ticket := p.turns.join(s.UID)
	defer ticket.leave()
	for {
		v := &visit{Programmer: p, by: by, sandbox: s, ticket: ticket, seen: ticket.count()}
		if result, err = v.ensure(ctx); !errors.Is(err, errOvertaken) {
			return result, err
		}
		if ctx.Err() != nil {
			return Failed, fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

func (p *Programmer) told() bool {
	return slices.ContainsFunc(p.Told, func(told func() bool) bool { return told() })
}

// Forget drops what is remembered of a sandbox that is gone; its rules went with its namespace.
func (p *Programmer) Forget(sandboxID string) { p.Ledger.Forget(sandboxID) }

// forgetPod drops all that is remembered of a pod that is no more.
func (p *Programmer) forgetPod(uid string) {
	p.Ledger.ForgetPod(uid)
	p.Reporter.Forget(uid)
}

// forgetOthers drops the pods that went by a name before the one that has it now, if any.
func (p *Programmer) forgetOthers(namespace, name, uid string) {
	for _, old := range p.Ledger.ForgetOthers(namespace, name, uid) {
		p.Reporter.Forget(old)
	}
}

// Permanent reports whether an error of Ensure stays until the pod changes.
func Permanent(err error) bool {
	_, ok := errors.AsType[permanentError](err)
	return ok
}

// permanentError marks an error without a word of its own: the runtime shows its text to the pod's owner.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// RulesKept reports whether the rules of an earlier wish are in force in spite of an error of Ensure.
func RulesKept(err error) bool {
	var kept keptError
	return errors.As(err, &kept)
}

// keptError is the error of a pod that keeps the rules it has.
type keptError struct{ error }

func (k keptError) Unwrap() error { return k.error }
