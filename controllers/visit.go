package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
)

// errOvertaken means that another call worked on the pod after this one had read it. Ensure starts again.
var errOvertaken = errors.New("another call has worked on the pod meanwhile")

// visit is one attempt of Ensure at one pod.
type visit struct {
	*Programmer
	by      Entrance
	sandbox podnet.Sandbox
	limit   time.Duration // of a piece of work in the kernel
	ticket  *ticket
	seen    int // turns used when the pod was read, this visit's own included
	pod     *corev1.Pod
	current bool // pod was read from the API server, not from the cache
	ns      *corev1.Namespace
	intent  intent.Intent
	want    *compiled // the intent's Spec, once it is known
}

func (v *visit) ensure(ctx context.Context) (Result, error) {
	if known, ok := v.Ledger.Of(v.sandbox.UID); ok && v.by == Verify { // no question to the runtime
		v.sandbox = known.Sandbox
	}
	if err := v.read(ctx); err != nil {
		return v.unread(err)
	}
	var err error
	v.intent, err = intent.Of(v.pod, v.ns, v.config(ctx))
	if err == nil && v.isFirstEarly() && (v.intent.Removes() || v.mayAskByNow(ctx)) {
		if err = v.readCurrent(ctx); err != nil && v.intent.Removes() {
			return v.unread(err)
		}
		v.intent, err = intent.Of(v.pod, v.ns, v.config(ctx))
	}
	switch {
	case err != nil:
		return v.refuse(ctx, err)
	case v.intent.Refused != "":
		return v.refuseProxy(ctx)
	case v.intent.Redirect:
		return v.program(ctx)
	case v.intent.Removes():
		return v.removeRules(ctx)
	}
	return v.skip(ctx)
}

func (v *visit) read(ctx context.Context) (err error) {
	if v.pod, err = v.Pods.Pod(ctx, v.sandbox); err != nil {
		return fmt.Errorf("read pod: %w", reasonError{err, reasonAPI})
	}
	if v.ns, err = v.Pods.Namespace(ctx, v.sandbox.Namespace); err != nil {
		return fmt.Errorf("read namespace: %w", reasonError{err, reasonAPI})
	}
	if v.by.early() {
		v.pod = asPending(v.pod)
	}
	return nil
}

// isFirstEarly reports whether an early entrance calls, and no call before it has removed the sandbox's rules or found none to remove.
func (v *visit) isFirstEarly() bool {
	known, ok := v.Ledger.Of(v.sandbox.UID)
	return v.by.early() && (!ok || known.State != Removed || known.Sandbox.ID != v.sandbox.ID)
}

// mayAskByNow reports whether the cache is known to be behind, and the pod would ask if its namespace had an annotation that it lacks there. Pods
// without a proxy would not: they start without a request while the API server is away.
func (v *visit) mayAskByNow(ctx context.Context) bool {
	if v.intent.Redirect || v.Contact == nil || v.Contact.Err() == nil {
		return false
	}
	asking := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v.pod.Namespace, Annotations: map[string]string{intent.KeyInitialize: "true"}}}
	would, err := intent.Of(v.pod, asking, v.config(ctx))
	return err != nil || would.Redirect || v.Proxies != nil && would.Reason == intent.NoProxy
}

// readCurrent reads pod and namespace from the API server. The cache may be late, and a pod that asks by now must not start without rules. One
// that is gone stays as it was read.
func (v *visit) readCurrent(ctx context.Context) error {
	pod, ns, err := v.askCurrent(ctx)
	if err == nil {
		v.pod, v.ns, v.current = asPending(pod), ns, true
	} else if errors.Is(err, podnet.ErrNoPod) {
		return nil
	}
	return err
}

// askCurrent returns pod and namespace as the API server has them now.
func (v *visit) askCurrent(ctx context.Context) (pod *corev1.Pod, ns *corev1.Namespace, err error) {
	if pod, err = v.Pods.Current(ctx, v.sandbox); err == nil {
		ns, err = v.Pods.CurrentNamespace(ctx, v.sandbox.Namespace)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("ask whether the pod still opts out: %w", reasonError{err, reasonAPI})
	}
	return pod, ns, nil
}

// asPending returns the pod with the phase Pending, because the runtime is making a container for it right now. The API server's phase
// is the kubelet's last report: a pod that was interrupted while it started may be shown as failed, and start again.
func asPending(pod *corev1.Pod) *corev1.Pod {
	out := *pod
	out.Status.Phase = corev1.PodPending
	return &out
}

// unread handles a pod that could not be read.
func (v *visit) unread(err error) (Result, error) {
	if errors.Is(err, podnet.ErrNoPod) {
		v.forgetPod(v.sandbox.UID)
		return Skipped, err
	}
	v.record(func() { v.Ledger.Retry(v.sandbox) })
	return Failed, err
}

// inTurn runs f while no other call works on the pod. f works on the kernel, then remembers and reports the outcome.
func (v *visit) inTurn(ctx context.Context, f func(context.Context) error) error {
	end, err := v.ticket.take(ctx, v.by.early())
	if err != nil {
		return err
	}
	defer end()
	if !v.ticket.use(v.seen) {
		return errOvertaken
	}
	v.seen++
	ctx, cancel := context.WithTimeout(ctx, v.limit)
	defer cancel()
	return f(ctx)
}

// present is Backend.Present outside a turn, within the limit of work in the kernel.
func (v *visit) present(ctx context.Context, s podnet.Sandbox) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, v.limit)
	defer cancel()
	return v.Backend.Present(ctx, s.Place())
}

// record calls f unless another call has used its turn since this one read the pod: that call's outcome is newer.
func (v *visit) record(f func()) { v.ticket.ifLast(v.seen, f) }

func (v *visit) program(ctx context.Context) (Result, error) {
	if err := v.find(ctx); err != nil {
		return v.unknown(ctx, err)
	}
	if !v.Config.Supports(v.sandbox.RuntimeHandler) {
		v.intent = intent.Intent{Reason: intent.UnsupportedRuntime, Asked: v.intent.Asked}
		return v.skip(ctx)
	}
	v.useNameservers()
	want, err := v.compiler.compile(v.intent.Spec)
	if err != nil {
		return v.refuse(ctx, err)
	}
	v.want = want
	changed := false
	err = v.inTurn(ctx, func(ctx context.Context) error {
		next := Entry{Sandbox: v.sandbox, State: Programmed, compiled: want}
		if known, _ := v.Ledger.Of(v.sandbox.UID); known.State == Programmed && v.left(want) {
			next.Findings, next.checked = known.Findings, known.checked
		} else if next.Findings, changed, err = v.apply(ctx, want); err != nil {
			return err
		}
		v.noteListening(ctx, &next.Findings)
		if found := next.Findings; v.Ledger.Put(next) {
			v.led(v.intent.LeadsTo)
			v.reportProgrammed(found, "traffic is redirected")
			v.follow(v.intent.Profile)
		}
		return nil
	})
	var others *podnet.ProgrammedByOthersError
	switch {
	case errors.As(err, &others):
		return v.leaveToOthers(others)
	case err != nil:
		return v.fail(ctx, fmt.Errorf("apply rules: %w", err))
	case !changed:
		return Unchanged, nil
	}
	log.FromContext(ctx).Info("rules applied", "sandbox", v.sandbox.ID, "netns", v.sandbox.NetNS, "specHash", want.hash)
	return Changed, nil
}

// useNameservers puts the name servers that the runtime knows of the sandbox into the Spec, if its rules name them.
func (v *visit) useNameservers() {
	if v.intent.Spec.DNS == iptables.DNSResolvConf && v.sandbox.Nameservers != "" {
		v.intent.Spec.Resolvers = intent.Addrs(strings.Split(v.sandbox.Nameservers, ","))
	}
}

// leaveToOthers handles a pod whose traffic another project redirects. It is checked again like any other.
func (v *visit) leaveToOthers(others *podnet.ProgrammedByOthersError) (Result, error) {
	v.record(func() {
		v.Ledger.Put(Entry{Sandbox: v.sandbox, State: ByOthers})
		v.reportEvent(ReasonProgrammedByOthers, others.Error())
	})
	return Skipped, nil
}

// removeRules removes the rules. Only the pod's own annotation "false", and the interception mode NONE, lead here.
func (v *visit) removeRules(ctx context.Context) (Result, error) {
	if err := v.find(ctx); absent(err) {
		v.record(v.reportNotRequired) // no sandbox, no rules
		return Skipped, nil
	} else if err != nil {
		return v.unknown(ctx, err)
	}
	if outdated, err := v.outdated(ctx); err != nil {
		return v.skipUnseen(ctx, err)
	} else if outdated {
		return Skipped, nil // the cache will follow
	}
	removed := false
	err := v.inTurn(ctx, func(ctx context.Context) (err error) {
		if removed, err = v.Backend.Remove(ctx, v.sandbox.Place()); err != nil {
			return err
		}
		v.led("")
		v.follow("")
		before, known := v.Ledger.Of(v.sandbox.UID)
		kept := v.Ledger.Put(Entry{Sandbox: v.sandbox, State: Removed})
		switch {
		case !kept:
		case removed:
			v.report(StatusRemoved, ReasonRemoved, string(v.intent.Reason))
		case !known || before.State != Removed || before.Sandbox.ID != v.sandbox.ID: // else the pod has the report already
			v.reportNotRequired()
		}
		return nil
	})
	if err != nil {
		return v.fail(ctx, fmt.Errorf("remove rules: %w", err))
	}
	if !removed {
		return Unchanged, nil
	}
	log.FromContext(ctx).Info("rules removed", "sandbox", v.sandbox.ID, "netns", v.sandbox.NetNS)
	return Changed, nil
}

// outdated reports whether there are rules that must stay, because by now the pod does not opt out any more, or is gone. After an outage the
// watch sends each change since, in order: a pod that opted out and in again must keep its rules. What a pod that is gone asked for last is not
// known, and its containers may run for a while.
func (v *visit) outdated(ctx context.Context) (bool, error) {
	if v.current {
		return false, nil
	}
	present, err := v.present(ctx, v.sandbox)
	if err != nil || !present {
		return false, nil //nolint:nilerr // the removal meets the same error, and knows what it means
	}
	pod, ns, err := v.askCurrent(ctx)
	if errors.Is(err, podnet.ErrNoPod) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	wants, err := intent.Of(pod, ns, v.config(ctx))
	return err != nil || !wants.Removes(), nil //nolint:nilerr // with a wrong annotation rules stay
}

// skip leaves a pod without a request for rules alone. Rules that it got earlier stay. A report of rules is replaced once their
// sandbox is gone, and a report of failure once the pod no longer asks.
func (v *visit) skip(ctx context.Context) (Result, error) {
	log.FromContext(ctx).V(1).Info("pod skipped", "reason", v.intent.Reason)
	switch v.intent.Reason {
	case intent.Finished: // it waits for no readiness gate
		v.record(func() { v.Ledger.ForgetPod(v.sandbox.UID) })
		return Skipped, nil
	case intent.HostNetwork, intent.UnsupportedRuntime: // no packet meets rules of ours, whatever its report says
		v.record(func() {
			v.Ledger.ForgetPod(v.sandbox.UID)
			v.reportNotRequired()
		})
		return Skipped, nil
	}
	known, ok := v.Ledger.Of(v.sandbox.UID)
	if !ok && !reported(v.pod) {
		v.record(v.reportNotRequired)
		return Skipped, nil
	}
	if err := v.find(ctx); absent(err) { // an event follows when the new sandbox runs
		v.record(func() { v.Ledger.ForgetPod(v.sandbox.UID) })
		return Skipped, nil
	} else if err != nil {
		return v.skipUnseen(ctx, err)
	}
	kept, err := v.keepRules(ctx)
	if err != nil {
		return v.skipUnseen(ctx, err)
	}
	v.record(func() {
		if kept {
			known, _ = v.Ledger.Of(v.sandbox.UID) // with what was found just now
			v.Ledger.Put(Entry{Sandbox: v.sandbox, State: Programmed, compiled: known.compiled, Findings: known.Findings})
			v.reportKept(known.compiled, known.Findings)
			return
		}
		v.Ledger.ForgetPod(v.sandbox.UID)
		// A report comes with the condition. The controller of 2018 wrote the annotation alone.
		if Status(v.pod.Annotations[KeyStatus]) == StatusInitialized && findCondition(v.pod) != nil {
			v.report(StatusRemoved, ReasonRemoved, "the sandbox that had rules is gone, and the new one gets none: "+string(v.intent.Reason))
			return
		}
		v.reportNotRequired()
	})
	return Skipped, nil
}

// skipUnseen handles a pod that needs no rules when it could not be found out whether it has some. The pod may start, and gets no report.
func (v *visit) skipUnseen(ctx context.Context, err error) (Result, error) {
	if errors.Is(err, errOvertaken) {
		return Failed, err
	}
	v.record(func() { v.Ledger.Retry(v.sandbox) })
	if !v.by.early() {
		return Failed, fmt.Errorf("look for rules: %w", err)
	}
	log.FromContext(ctx).Error(err, "rules of a pod that needs none not looked for")
	return Skipped, nil
}
