// Package controllers is the agent's core: what to do when anything tells it about a pod's sandbox, what it remembers, and
// what it tells the pod's owner.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"
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

// Pods reads pods and namespaces. A pod that is not there, or has another UID, is errNoPod.
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

// The entrances of the agent itself.
const (
	Watch Entrance = "watch"
	Sweep Entrance = "sweep"
)

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

	locks keyedMutex
}

// Ensure converges one sandbox, of which Namespace, Name and UID are known at least. Errors that matter to callers are
// podnet.ErrNotReady and podnet.ErrGone (ask again soon) and those for which Permanent is true (ask when the pod changes).
func (p *Programmer) Ensure(ctx context.Context, by Entrance, s podnet.Sandbox) (result Result, err error) {
	defer func(start time.Time) { p.Metrics.ensured(by, result, err, time.Since(start)) }(time.Now())
	defer p.locks.lock(s.UID)()
	pod, err := p.Pods.Pod(ctx, s)
	if errors.Is(err, errNoPod) {
		p.Ledger.ForgetPod(s.UID)
		return Skipped, nil
	}
	if err != nil {
		return Failed, fmt.Errorf("read pod: %w", err)
	}
	ns, err := p.Pods.Namespace(ctx, s.Namespace)
	if err != nil {
		return Failed, fmt.Errorf("read namespace: %w", err)
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

// Forget drops what is remembered of a sandbox that is gone; its rules went with its namespace.
func (p *Programmer) Forget(sandboxID string) { p.Ledger.Forget(sandboxID) }

// Permanent tells whether an error of Ensure stays until the pod changes.
func Permanent(err error) bool { return errors.Is(err, reconcile.TerminalError(nil)) }

// visit is one call of Ensure for one pod.
type visit struct {
	*Programmer
	by      Entrance
	sandbox podnet.Sandbox
	pod     *corev1.Pod
	intent  intent.Intent
}

// find completes the sandbox where the entrance does not know its namespace.
func (v *visit) find(ctx context.Context) error {
	if v.sandbox.NetNS != "" {
		return nil
	}
	found, err := v.Finder.Find(ctx, v.sandbox)
	if err != nil {
		return fmt.Errorf("find sandbox: %w", err)
	}
	v.sandbox = found
	return nil
}

func (v *visit) program(ctx context.Context) (Result, error) {
	if err := v.find(ctx); err != nil {
		return v.fail(ctx, err)
	}
	if !v.Intent.Supports(v.sandbox.RuntimeHandler) {
		v.intent = intent.Intent{Reason: intent.UnsupportedRuntime}
		return v.skip(ctx)
	}
	if v.intent.Spec.DNS == iptables.DNSResolvConf && v.sandbox.Nameservers != "" {
		v.intent.Spec.Resolvers = intent.Addrs(strings.Split(v.sandbox.Nameservers, ","))
	}
	rules, err := iptables.Rules(v.intent.Spec)
	if err != nil {
		return v.refuse(err)
	}
	changed, err := v.Backend.Apply(ctx, v.sandbox.NetNS, rules)
	if err != nil {
		return v.fail(ctx, fmt.Errorf("apply rules: %w", err))
	}
	v.Ledger.Put(Entry{Sandbox: v.sandbox, State: Programmed})
	v.report(StatusInitialized, ReasonInitialized, "traffic is redirected")
	if !changed {
		return Unchanged, nil
	}
	log.FromContext(ctx).Info("rules applied", "sandbox", v.sandbox.ID, "netns", v.sandbox.NetNS, "specHash", v.intent.Spec.Hash())
	return Changed, nil
}

// open takes the rules away: the one way to do so is the pod's own wish.
func (v *visit) open(ctx context.Context) (Result, error) {
	if err := v.find(ctx); absent(err) {
		return v.settle(Skipped), nil // no sandbox, no rules
	} else if err != nil {
		return v.fail(ctx, err)
	}
	removed, err := v.Backend.Remove(ctx, v.sandbox.NetNS)
	if err != nil {
		return v.fail(ctx, fmt.Errorf("remove rules: %w", err))
	}
	v.Ledger.Put(Entry{Sandbox: v.sandbox, State: Removed})
	if !removed {
		return v.settle(Unchanged), nil
	}
	log.FromContext(ctx).Info("rules removed", "sandbox", v.sandbox.ID, "netns", v.sandbox.NetNS)
	v.report(StatusRemoved, ReasonRemoved, string(v.intent.Reason))
	return Changed, nil
}

// skip leaves a pod alone. Rules that it was given while it, or its namespace, still asked for them stay; a report of such
// rules does not outlive the sandbox that held them.
func (v *visit) skip(ctx context.Context) (Result, error) {
	log.FromContext(ctx).V(1).Info("pod skipped", "reason", v.intent.Reason)
	if !reported(v.pod) || v.intent.Reason == intent.Finished {
		return v.settle(Skipped), nil
	}
	if err := v.find(ctx); absent(err) {
		return Skipped, nil // the pod's next event tells when its new sandbox runs
	} else if err != nil {
		return v.fail(ctx, err)
	}
	present, err := v.Backend.Present(ctx, v.sandbox.NetNS)
	if err != nil {
		return v.fail(ctx, fmt.Errorf("look for rules: %w", err))
	}
	if !present {
		v.report(StatusRemoved, ReasonRemoved, "the sandbox that had rules is gone, and the new one gets none: "+string(v.intent.Reason))
	}
	return Skipped, nil
}

// settle keeps a pod that waits for our readiness gate from waiting for ever.
func (v *visit) settle(r Result) Result {
	if gated(v.pod) {
		v.report("", ReasonNotRequired, string(v.intent.Reason))
	}
	return r
}

// refuse reports what the pod's owner has to mend. Rules that are there stay: a wrong word opens nothing.
func (v *visit) refuse(err error) (Result, error) {
	v.Ledger.Fail(v.sandbox)
	v.report(StatusFailed, ReasonInvalidAnnotation, err.Error())
	return Failed, reconcile.TerminalError(err)
}

// fail reports an error that may pass, unless the sandbox is only not there (yet, or any more).
func (v *visit) fail(ctx context.Context, err error) (Result, error) {
	if !absent(err) && v.takenDown(ctx) {
		err = errors.Join(podnet.ErrGone, err)
	}
	if absent(err) {
		return Skipped, err
	}
	v.Ledger.Fail(v.sandbox)
	v.report(StatusFailed, ReasonRedirectFailed, err.Error())
	return Failed, err
}

// takenDown tells whether the runtime has ended the sandbox since it was found. It unmounts the namespace before it removes
// the path, which leads to a plain file meanwhile. Other entrances than these two come while the runtime still makes the
// sandbox, and does not answer for it.
func (v *visit) takenDown(ctx context.Context) bool {
	if v.sandbox.NetNS == "" || v.by != Watch && v.by != Sweep {
		return false
	}
	now, err := v.Finder.Find(ctx, v.sandbox)
	return absent(err) || err == nil && now.ID != v.sandbox.ID
}

// absent tells the errors that only say that a sandbox is not there (yet, or any more).
func absent(err error) bool {
	return errors.Is(err, podnet.ErrNotReady) || errors.Is(err, podnet.ErrGone)
}

func (v *visit) report(status Status, reason, message string) {
	r := Report{
		Sandbox: v.sandbox, Status: status, Reason: reason, Message: message,
		Entrance: v.by, Backend: v.BackendName,
	}
	if status == StatusInitialized {
		r.SpecHash = v.intent.Spec.Hash()
	}
	v.Reporter.Report(r)
}
