package controllers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

// says has the pod carry the report that it got.
func (b *bench) says(t *testing.T, r Report) {
	t.Helper()
	b.pods.pod.Annotations[podreport.KeyStatus] = string(r.Status)
	b.pods.pod.Status.Conditions = []corev1.PodCondition{{Type: podreport.Condition, Status: r.condition(), Reason: r.Reason, Message: r.Message}}
}

// A node's upgrade restarts agent and runtime together: pods whose rules stand must not leave their Services.
func TestAReportStaysWhileRuntimeOrAPIServerIsAway(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(b *bench)
		by       Hook
		restart  bool // the agent remembers nothing
		takeBack bool
	}{
		"the runtime":                      {change: func(b *bench) { b.finder.err = errors.New("connection refused") }},
		"the runtime, after a restart":     {change: func(b *bench) { b.finder.err = errors.New("connection refused") }, restart: true},
		"the API server":                   {change: func(b *bench) { b.pods.err = errors.New("connection refused") }},
		"the API server, of the namespace": {change: func(b *bench) { b.pods.errNS = errors.New("connection refused") }},
		"the kernel, in time":              {change: func(b *bench) { b.backend.err = fmt.Errorf("look: %w", context.DeadlineExceeded) }},
		"the kernel, in its own time":      {change: func(b *bench) { b.backend.err = fmt.Errorf("read: %w", os.ErrDeadlineExceeded) }},
		"the kernel, while we leave":       {change: func(b *bench) { b.backend.err = context.Canceled }, by: NRI},
		"the runtime, but the kernel says that the rules are gone": {
			change: func(b *bench) { b.finder.err = errors.New("connection refused"); clear(b.backend.held) }, takeBack: true,
		},
		"the runtime, but the namespace is gone": {
			change: func(b *bench) {
				b.finder.err = errors.New("connection refused")
				b.backend.identity["/netns/1"] = podnet.Identity{Ino: 2}
			}, takeBack: true,
		},
		"the runtime, and the namespace cannot be looked at": {
			change: func(b *bench) {
				b.finder.err, b.backend.errLook = errors.New("connection refused"), errors.New("too many files")
			},
		},
		"the kernel, out of descriptors": {change: func(b *bench) { b.backend.err = fmt.Errorf("open: %w", syscall.EMFILE) }},
		"the kernel, out of memory":      {change: func(b *bench) { b.backend.err = fmt.Errorf("commit: %w", syscall.ENOMEM) }},
		"the kernel, once it has shown that the rules differ": {
			change: func(b *bench) {
				b.backend.seen, b.backend.err = lost, fmt.Errorf("write: %w", context.DeadlineExceeded)
			}, takeBack: true,
		},
		"the kernel, once it has shown other rules to a new agent": {
			change: func(b *bench) {
				b.backend.seen, b.backend.err = lost, fmt.Errorf("write: %w", context.DeadlineExceeded)
			}, restart: true,
		},
		"the kernel refuses": {change: func(b *bench) { b.backend.err = errors.New("kernel says no") }, takeBack: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.ensure(t, Changed)
			b.says(t, b.lastReport(t))
			if c.restart {
				b.Ledger.ForgetPod("uid-1")
			}
			s := b.sandbox
			if c.by == "" {
				c.by = Watch
			} else {
				s.ID, s.NetNS = "sandbox-1", "/netns/1"
			}
			c.change(b)
			if result, err := b.Ensure(t.Context(), c.by, s); result != Failed || err == nil {
				t.Fatalf("result %q, error %v", result, err)
			}
			if taken := b.lastReport(t).condition() == corev1.ConditionFalse; taken != c.takeBack {
				t.Errorf("reported %+v", b.lastReport(t))
			}
			if e, ok := b.Ledger.Of("uid-1"); !ok || !e.Retry {
				t.Errorf("not to be retried: %+v", e)
			}
		})
	}
}

// A runtime that restarts while pods start: NRI was told of them, their good report waits or is not shown yet, and the next look
// needs the runtime. What is in the kernel is no failure.
func TestRulesInTheKernelAreNoFailureWithoutAReport(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b *bench)
		failed bool
	}{
		"they are there":               {change: func(*bench) {}},
		"they are gone":                {change: func(b *bench) { clear(b.backend.held) }, failed: true},
		"the namespace cannot be read": {change: func(b *bench) { b.backend.errLook = errors.New("no") }, failed: true},
		"they were removed": {change: func(b *bench) {
			b.Ledger.Put(Entry{Sandbox: b.known(), State: Removed})
		}, failed: true},
	} {
		b := newBench(t)
		if result, err := b.Ensure(t.Context(), NRI, b.known()); result != Changed || err != nil {
			t.Fatalf("%s: result %q, error %v", name, result, err)
		}
		b.finder.err = errors.New("connection refused")
		c.change(b)
		if result, err := b.Ensure(t.Context(), Watch, b.sandbox); result != Failed || err == nil {
			t.Fatalf("%s: result %q, error %v", name, result, err)
		}
		if failed := b.lastReport(t).Status == podreport.StatusFailed; failed != c.failed {
			t.Errorf("%s: reported %+v", name, b.lastReport(t))
		}
		if e, _ := b.Ledger.Of("uid-1"); !e.Retry {
			t.Errorf("%s: not to be retried: %+v", name, e)
		}
	}
}

// A pod without a report of its rules gets a report of what failed.
func TestAPodWithoutRulesSaysThatTheRuntimeIsAway(t *testing.T) {
	for name, condition := range map[string][]corev1.PodCondition{
		"a new pod":                 nil,
		"a pod that failed":         {{Type: podreport.Condition, Status: corev1.ConditionFalse, Reason: podreport.ReasonInitialized}},
		"a pod that needed nothing": {{Type: podreport.Condition, Status: corev1.ConditionTrue, Reason: podreport.ReasonNotRequired}},
	} {
		b := newBench(t)
		b.pods.pod.Status.Conditions = condition
		b.finder.err = errors.New("connection refused")
		if result, err := b.Ensure(t.Context(), Watch, b.sandbox); result != Failed || err == nil {
			t.Fatalf("%s: result %q, error %v", name, result, err)
		}
		if got := b.lastReport(t); got.Status != podreport.StatusFailed || !strings.Contains(got.Message, "connection refused") {
			t.Errorf("%s: report %+v", name, got)
		}
	}
}

// An agent that does not answer in time has learnt nothing about the sandbox.
func TestADeadlineIsNotTakenForAnEndedSandbox(t *testing.T) {
	b := newBench(t)
	b.ensure(t, Changed)
	b.says(t, b.lastReport(t))
	reports := len(b.reporter.reports)
	clear(b.finder.sandboxes)
	b.backend.errLook = fmt.Errorf("enter: %w", context.DeadlineExceeded)
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); !errors.Is(err, podnet.ErrNotReady) || len(b.reporter.reports) != reports {
		t.Errorf("error %v, reports %+v", err, b.reporter.reports[reports:])
	}
	b.backend.errLook = errors.New("not a network namespace")
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); !errors.Is(err, podnet.ErrNotReady) || b.lastReport(t).Reason != podreport.ReasonSandboxNotReady {
		t.Errorf("error %v, report %+v", err, b.lastReport(t))
	}
}

// A pod that is being deleted needs no news of its sandbox.
func TestADeletedPodsSandboxIsNotMadeAnew(t *testing.T) {
	b := newBench(t)
	b.says(t, Report{Status: podreport.StatusInitialized, Reason: podreport.ReasonInitialized})
	clear(b.finder.sandboxes)
	now := metav1Now()
	b.pods.pod.DeletionTimestamp = &now
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); !errors.Is(err, podnet.ErrNotReady) || len(b.reporter.reports) != 0 {
		t.Errorf("error %v, reports %+v", err, b.reporter.reports)
	}
}
