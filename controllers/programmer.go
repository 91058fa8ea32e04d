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
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
)

// Backend puts rules into the network namespace at a path. Apply replaces the whole of what we own there and tells whether
// that changed anything; Present tells whether there is anything of ours; Remove takes it away and tells whether there was
// anything. None of them ever writes to the host's namespace.
type Backend interface {
	Apply(ctx context.Context, netns string, want iptables.Ruleset) (changed bool, err error)
	Present(ctx context.Context, netns string) (bool, error)
	Remove(ctx context.Context, netns string) (removed bool, err error)
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

// Reporter tells the pod's owner how it went, some time later.
type Reporter interface {
	Report(r Report)
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

// early tells the entrances by which we are told of a sandbox while it is made.
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
//   - lock the pod, so that entrances do not work on it at the same time;
//   - read the pod, whose UID must match, and judge what it asks for;
//   - find its sandbox and namespace where the entrance does not know them;
//   - have the backend apply, or take away, the whole of its rules;
//   - remember the outcome and queue the report to the pod's owner.
//
// Nothing is skipped because of what the pod's annotations report or what the ledger remembers: the backend compares with
// the kernel.
type Programmer struct {
	Intent      intent.Config
	Backend     Backend
	BackendName string
	Finder      Finder
	Pods        Pods
	Reporter    Reporter
	Ledger      *Ledger
	Metrics     *Metrics
	// Told says, one for each such entrance, whether the runtime tells by itself of every sandbox that it makes, at present.
	Told []func() bool

	locks keyedMutex
}

// Ensure converges one sandbox, of which Namespace, Name and UID are known at least. Errors that matter to callers are
// podnet.ErrNotReady and podnet.ErrGone (ask again soon), podnet.ErrNoPod, and those for which Permanent is true (ask when the pod
// changes).
func (p *Programmer) Ensure(ctx context.Context, by Entrance, s podnet.Sandbox) (result Result, err error) {
	defer func(start time.Time) { p.Metrics.ensured(by, result, err, time.Since(start)) }(time.Now())
	defer p.locks.lock(s.UID)()
	pod, err := p.Pods.Pod(ctx, s)
	if errors.Is(err, podnet.ErrNoPod) {
		p.Ledger.ForgetPod(s.UID)
		return Skipped, err
	}
	if err != nil {
		return Failed, fmt.Errorf("read pod: %w", err)
	}
	ns, err := p.Pods.Namespace(ctx, s.Namespace)
	if err != nil {
		return Failed, fmt.Errorf("read namespace: %w", err)
	}
	if by.early() {
		pod = starting(pod)
	}
	v := visit{Programmer: p, by: by, sandbox: s, pod: pod}
	v.intent, err = intent.Of(pod, ns, p.Intent)
	switch {
	case err != nil:
		return v.refuse(err)
	case v.intent.Redirect:
		return v.program(ctx)
	case v.intent.Reason == intent.OptedOut:
		return v.open(ctx)
	}
	return v.skip(ctx)
}

// starting is a pod that the runtime makes a container for at this moment. Its phase is the kubelet's last report: a pod that
// was interrupted while it started may be said to have failed, and start again.
func starting(pod *corev1.Pod) *corev1.Pod {
	out := *pod
	out.Status.Phase = corev1.PodPending
	return &out
}

func (p *Programmer) told() bool {
	return slices.ContainsFunc(p.Told, func(told func() bool) bool { return told() })
}

// Forget drops what is remembered of a sandbox that is gone; its rules went with its namespace.
func (p *Programmer) Forget(sandboxID string) { p.Ledger.Forget(sandboxID) }

// Permanent tells whether an error of Ensure stays until the pod changes.
func Permanent(err error) bool { return errors.Is(err, reconcile.TerminalError(nil)) }
