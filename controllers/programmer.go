// Package controllers is the agent's core: it decides what to do when an entrance reports a pod's sandbox, remembers the outcome, and
// reports it to the pod's owner.
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
// exist or has another UID, the error is podnet.ErrNoPod.
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

// Proxies runs the proxies of pods that have chosen a SidecarProfile.
type Proxies interface {
	// Managed returns what the rules need to know of the pod's proxy. The sandbox may have no ID yet.
	Managed(ctx context.Context, s podnet.Sandbox, profile string, pod *corev1.Pod, ns *corev1.Namespace) *intent.ManagedProxy
	// Follow has the proxy of a sandbox looked after, and does not wait. With profile "", the pod has chosen none: only a proxy that it has
	// nevertheless is looked after. A call by Verify makes no new look at a sandbox whose proxy is looked after already.
	Follow(s podnet.Sandbox, by Entrance, profile string)
	// Led is called after rules were applied, which then lead to the proxy of profile, or removed, with profile "".
	Led(s podnet.Sandbox, profile string)
	// Ready reports whether the proxy to which the rules lead answers; known is false until it was asked.
	Ready(s podnet.Sandbox) (ready, known bool)
	// Forget is for a pod that is gone.
	Forget(podUID string)
}

// Entrance names where a call of Ensure comes from.
type Entrance string

// The entrances. Watch and Verify are the agent's own; the container runtime calls NRI, and the CNI chain calls CNI.
const (
	Watch  Entrance = "watch"
	Verify Entrance = "verify"
	NRI    Entrance = "nri"
	CNI    Entrance = "cni"
)

// early reports whether the entrance calls before the pod's first container exists.
func (e Entrance) early() bool { return e == NRI || e == CNI }

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
//   - find its sandbox if the entrance does not know it, and identify its namespace: no later open may lead to another one;
//   - take the pod's turn: early entrances go first, and a call starts again if another one had the turn since it read the pod;
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
	// Announcers holds a function for each entrance that can announce every new sandbox. It reports whether the entrance does so at
	// present.
	Announcers []func() bool
	// Proxies is nil if the agent runs none.
	Proxies Proxies
	// Contact is nil if it is not known whether Pods are behind.
	Contact *Contact
	// Listeners is nil if reports name no listening ports.
	Listeners Listeners

	// requeue makes a pod due after a while; nil if there is no PodWatch.
	requeue    func(s podnet.Sandbox, wait time.Duration)
	tickOffset time.Duration // of the moments at which pods are due, from the clock's; random
	turns      turns
	compiler   compiler
}

// Ensure makes one sandbox hold the rules that its pod asks for. Namespace, Name and UID of s must be set. Errors that callers tell
// apart: podnet.ErrNotReady and podnet.ErrGone (try again soon), podnet.ErrNoPod, and those for which Permanent is true (try again
// when the pod changes). After any other error the PodWatch tries again.
func (p *Programmer) Ensure(ctx context.Context, by Entrance, s podnet.Sandbox) (Result, error) {
	result, err := p.ensure(ctx, by, s, ensureTimeout)
	if wait := p.wait(s.UID); wait > 0 && p.requeue != nil {
		p.requeue(s, wait)
	}
	return result, err
}

// ensure is Ensure with a limit of the time in the kernel.
func (p *Programmer) ensure(ctx context.Context, by Entrance, s podnet.Sandbox, limit time.Duration) (result Result, err error) {
	defer func(start time.Time) { p.Metrics.ensured(by, result, err, time.Since(start)) }(time.Now())
	ticket := p.turns.join(s.UID)
	defer ticket.leave()
	for {
		v := &visit{Programmer: p, by: by, sandbox: s, limit: limit, ticket: ticket, seen: ticket.count()}
		if result, err = v.ensure(ctx); !errors.Is(err, errOvertaken) {
			return result, err
		}
		if ctx.Err() != nil {
			return Failed, fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

// announced reports whether some entrance announces every new sandbox at present.
func (p *Programmer) announced() bool {
	return slices.ContainsFunc(p.Announcers, func(announces func() bool) bool { return announces() })
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

// forgetOthers drops the pods of a name, except the one with the given UID.
func (p *Programmer) forgetOthers(namespace, name, uid string) {
	for _, old := range p.Ledger.ForgetOthers(namespace, name, uid) {
		p.forgetPod(old)
	}
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
