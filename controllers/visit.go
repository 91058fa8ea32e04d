package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
)

// visit is one call of Ensure for one pod.
type visit struct {
	*Programmer
	by      Entrance
	sandbox podnet.Sandbox
	pod     *corev1.Pod
	intent  intent.Intent
}

// find completes the sandbox where the entrance does not know its namespace, or knows a path only that may lead to another
// pod by now. A runtime that tells of sandboxes by itself is asked only for those of which it should have told.
func (v *visit) find(ctx context.Context) error {
	if lasting(v.sandbox) {
		return nil
	}
	if v.told() {
		known, ok := v.Ledger.Of(v.sandbox.UID)
		switch {
		case ok && lasting(known.Sandbox) && (v.intent.Spec.DNS != iptables.DNSResolvConf || known.Sandbox.Nameservers != ""):
			v.sandbox = known.Sandbox
			return nil
		case !ok && !started(v.pod):
			return fmt.Errorf("find sandbox: the runtime has told of none: %w", podnet.ErrNotReady)
		}
	}
	found, err := v.Finder.Find(ctx, v.sandbox)
	if err != nil {
		return fmt.Errorf("find sandbox: %w", err)
	}
	v.sandbox = found
	return nil
}

// lasting reports whether a sandbox's path can be used at any time: for as long as it leads anywhere it leads to this sandbox.
func lasting(s podnet.Sandbox) bool { return s.NetNS != "" && !s.OfProcess() }

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
	if v.intent.Reason == intent.Finished {
		return Skipped, nil // it waits for no gate
	}
	if !reported(v.pod) {
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
	if errors.Is(err, podnet.ErrGone) {
		v.Ledger.Forget(v.sandbox.ID)
	}
	if absent(err) {
		if v.reportStale(ctx) {
			v.report("", ReasonSandboxNotReady, "the pod's new sandbox has no rules yet")
		}
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

// reportStale tells whether the pod's report speaks of a sandbox that is no more. One that the runtime does not tell of may
// also be in the making still, with its rules in place: its namespace lives.
func (v *visit) reportStale(ctx context.Context) bool {
	if !reported(v.pod) || v.sandbox.ID != "" || v.pod.DeletionTimestamp != nil {
		return false
	}
	known, ok := v.Ledger.Of(v.sandbox.UID)
	if !ok || known.Sandbox.NetNS == "" {
		return true
	}
	_, err := v.Backend.Present(ctx, known.Sandbox.NetNS)
	return err != nil
}

// started tells whether the kubelet knows of a sandbox of the pod.
func started(pod *corev1.Pod) bool {
	return len(pod.Status.PodIPs) > 0 ||
		slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.ContainerID != "" }) ||
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue
		})
}

// absent tells the errors that only say that a pod or its sandbox is not there (yet, or any more).
func absent(err error) bool {
	return errors.Is(err, podnet.ErrNotReady) || errors.Is(err, podnet.ErrGone) || errors.Is(err, podnet.ErrNoPod)
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
