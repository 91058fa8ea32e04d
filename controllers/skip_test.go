package controllers

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

func metav1Now() metav1.Time { return metav1.Now() }

// If a pod asks and gets no rules, its report says why, once, and its gate opens.
func TestAPodThatAskedAndGetsNothingIsToldWhy(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*bench)
		want   intent.Reason
	}{
		"istio-init is there": {
			change: func(b *bench) { b.pods.pod.Spec.InitContainers = []corev1.Container{{Name: "istio-init"}} }, want: intent.IstioInit,
		},
		"the node's network": {change: func(b *bench) { b.pods.pod.Spec.HostNetwork = true }, want: intent.HostNetwork},
		"another kernel's network": {
			change: func(b *bench) {
				b.finder.sandboxes["uid-1"] = podnet.Sandbox{ID: "s", NetNS: "/n", RuntimeHandler: "kata-qemu"}
			},
			want: intent.UnsupportedRuntime,
		},
	} {
		b := newBench(t)
		c.change(b)
		b.ensure(t, Skipped)
		got := b.lastReport(t)
		if got.Status != "" || got.Reason != podreport.ReasonNotRequired || got.Message != string(c.want) || !got.Event || got.condition() != corev1.ConditionTrue {
			t.Errorf("%s: report %+v", name, got)
		}
		if len(b.backend.held) != 0 || b.Ledger.size() != 0 {
			t.Errorf("%s: rules %v, %d things remembered", name, b.backend.held, b.Ledger.size())
		}
	}
}

// A report that somebody else has written on a pod of the node's network is replaced, without a question to the runtime, which knows no namespace of it.
func TestEnsure_forgedReportOnHostNetwork_isReplaced(t *testing.T) {
	for _, asks := range []string{"true", "false", ""} {
		b := newBench(t)
		b.pods.pod.Spec.HostNetwork = true
		b.pods.pod.Annotations = map[string]string{podreport.KeyStatus: string(podreport.StatusInitialized), intent.KeyInitialize: asks}
		b.finder.err = errors.New("the sandbox has no network namespace")
		b.ensure(t, Skipped)
		if got := b.lastReport(t); got.Status != "" || got.Reason != podreport.ReasonNotRequired || b.finder.asked.Load() != 0 || b.Ledger.size() != 0 {
			t.Errorf("initialize=%q: report %+v after %d questions, %d things remembered", asks, got, b.finder.asked.Load(), b.Ledger.size())
		}
	}
}

// The CNI chain does not know the runtime class's handler. The next look asks the runtime for it.
func TestEnsure_handlerFoundUnsupportedAfterCNI_reportsNoRules(t *testing.T) {
	for _, by := range []Hook{Watch, Verify} {
		b := benchOfClass(t, "kata-qemu")
		if _, err := b.Ensure(t.Context(), CNI, announcedSandbox()); err != nil || b.lastReport(t).Status != podreport.StatusInitialized {
			t.Fatalf("error %v, report %+v", err, b.lastReport(t))
		}
		if _, err := b.Ensure(t.Context(), by, b.sandbox); err != nil {
			t.Fatal(err)
		}
		if got := b.lastReport(t); got.Status != "" || got.Message != string(intent.UnsupportedRuntime) || b.Ledger.size() != 0 {
			t.Errorf("%s: report %+v, %d things remembered", by, got, b.Ledger.size())
		}
	}
}

// A handler is asked for once, whatever it is, and not at all for a pod without a runtime class.
func TestEnsure_handlerUnknownAfterCNI_asksOnce(t *testing.T) {
	for class, want := range map[string]int64{"crun": 1, "": 0} {
		b := benchOfClass(t, class)
		for _, by := range []Hook{CNI, Verify, Verify, CNI, Verify} {
			if _, err := b.Ensure(t.Context(), by, announcedSandbox()); err != nil {
				t.Fatal(err)
			}
		}
		if got := int64(b.finder.asked.Load()); got != want {
			t.Errorf("class %q: %d questions", class, got)
		}
		if known, _ := b.Ledger.Of("uid-1"); known.State != Programmed || known.Sandbox.RuntimeHandler != class {
			t.Errorf("class %q: remembered %+v", class, known)
		}
	}
}

// announcedSandbox is the pod's as the CNI chain describes it.
func announcedSandbox() podnet.Sandbox {
	return podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "uid-1", ID: "sandbox-1", NetNS: "/netns/1"}
}

// benchOfClass has a pod of a runtime class that the runtime knows under the same name, and the CNI chain announces every sandbox.
func benchOfClass(t *testing.T, class string) *bench {
	t.Helper()
	b := newBench(t)
	b.Announcers = []func() bool{func() bool { return true }}
	if class != "" {
		b.pods.pod.Spec.RuntimeClassName = &class
	}
	known := announcedSandbox()
	known.RuntimeHandler, known.CreatedAt = class, 1
	b.finder.sandboxes["uid-1"] = known
	return b
}

// A report of a failure ends with the request that failed.
func TestAReportOfAFailureEndsWithTheRequest(t *testing.T) {
	for name, c := range map[string]struct {
		rules  bool // from before the failure
		change func(*bench)
		want   Report
	}{
		"no request, and there are no rules": {
			change: func(b *bench) { delete(b.pods.pod.Annotations, intent.KeyInitialize) },
			want:   Report{Reason: podreport.ReasonNotRequired},
		},
		"no request, and earlier rules stay": {
			rules:  true,
			change: func(b *bench) { delete(b.pods.pod.Annotations, intent.KeyInitialize) },
			want:   Report{Status: podreport.StatusInitialized, Reason: podreport.ReasonInitialized},
		},
		"opted out, there are no rules": {
			change: func(b *bench) { b.pods.pod.Annotations[intent.KeyInitialize] = "false" },
			want:   Report{Reason: podreport.ReasonNotRequired},
		},
		"opted out, rules of before go": {
			rules:  true,
			change: func(b *bench) { b.pods.pod.Annotations[intent.KeyInitialize] = "false" },
			want:   Report{Status: podreport.StatusRemoved, Reason: podreport.ReasonRemoved},
		},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, agent restarted %v", name, restart), func(t *testing.T) {
				b := failedBench(t, c.rules, restart)
				c.change(b)
				checkMended(t, b, c.want, restart)
			})
		}
	}
}

// failedBench has a pod with a wrong annotation that was corrected just now. It may have earlier rules, and the agent may
// have restarted.
func failedBench(t *testing.T, rules, restart bool) *bench {
	t.Helper()
	b := newBench(t)
	if rules {
		b.ensure(t, Changed)
	}
	b.pods.pod.Annotations[wrongKey] = "http"
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); !Permanent(err) {
		t.Fatal(err)
	}
	b.says(t, b.lastReport(t))
	delete(b.pods.pod.Annotations, wrongKey)
	if restart {
		b.Ledger.ForgetPod("uid-1")
	}
	return b
}

// checkMended runs Ensure for the pod: the new state is reported once.
func checkMended(t *testing.T, b *bench, want Report, restarted bool) {
	t.Helper()
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); err != nil {
		t.Fatal(err)
	}
	got := b.lastReport(t)
	if got.Status != want.Status || got.Reason != want.Reason || got.condition() != corev1.ConditionTrue {
		t.Errorf("report %+v", got)
	}
	if kept := want.Status == podreport.StatusInitialized; (b.backend.rules("/netns/1") != "") != kept || kept && !restarted && got.SpecHash == "" {
		t.Errorf("rules %q, report %+v", b.backend.rules("/netns/1"), got)
	}
	if e, ok := b.Ledger.Of("uid-1"); ok && (e.State == FailedPod || e.State == InvalidPod) || e.Retry {
		t.Errorf("remembered %+v", e)
	}
	b.says(t, got)
	n := len(b.reporter.reports)
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); err != nil || len(b.reporter.reports) != n {
		t.Errorf("reported again: %+v, error %v", b.reporter.reports[n:], err)
	}
}

// Pods that never asked start whatever state the agent is in.
func TestAFaultDoesNotHoldAPodThatNeedsNothing(t *testing.T) {
	for _, by := range []Hook{NRI, CNI, Watch} {
		b := newBench(t)
		b.pods.pod.Annotations = map[string]string{podreport.KeyStatus: string(podreport.StatusInitialized)}
		b.backend.err = errors.New("kernel says no")
		s := b.sandbox
		s.ID, s.NetNS = "sandbox-1", "/netns/1"
		result, err := b.Ensure(t.Context(), by, s)
		if early := by.early(); early != (err == nil) || early != (result == Skipped) || len(b.reporter.reports) != 0 {
			t.Errorf("%s: result %q, error %v, reports %+v", by, result, err, b.reporter.reports)
		}
		if e, _ := b.Ledger.Of("uid-1"); !e.Retry {
			t.Errorf("%s: not to be looked at again", by)
		}
	}
}

// What another project has programmed works; a gate that stayed shut would be an outage of our own making.
func TestAPodThatOthersHaveProgrammedIsLeftToThem(t *testing.T) {
	b := newBench(t)
	b.says(t, Report{Status: podreport.StatusInitialized, Reason: podreport.ReasonInitialized})
	b.backend.err = &podnet.ProgrammedByOthersError{Owner: "Istio", Found: "chain ISTIO_OUTPUT"}
	for _, by := range []Hook{Watch, Verify} {
		if result, err := b.Ensure(t.Context(), by, b.sandbox); result != Skipped || err != nil {
			t.Fatalf("%s: result %q, error %v", by, result, err)
		}
	}
	got := b.lastReport(t)
	if got.Reason != podreport.ReasonProgrammedByOthers || got.Status != "" || !got.Event || got.condition() != corev1.ConditionTrue || !strings.Contains(got.Message, "Istio") {
		t.Errorf("report %+v", got)
	}
	if e, _ := b.Ledger.Of("uid-1"); e.State != ByOthers || e.Retry || e.Sandbox.NetNS == "" {
		t.Errorf("remembered %+v", e)
	}
	b.backend.err = nil // they have left
	b.verify(t)
	if b.backend.rules("/netns/1") == "" || b.lastReport(t).Status != podreport.StatusInitialized {
		t.Errorf("report %+v", b.lastReport(t))
	}
}

// Rules that are kept are left to others, too, if ours have gone and theirs have come.
func TestKeptRulesThatOthersHaveReplaced(t *testing.T) {
	b := newBench(t)
	b.ensure(t, Changed)
	b.pods.pod.Annotations = map[string]string{}
	b.backend.err = &podnet.ProgrammedByOthersError{Owner: "Istio"}
	b.ensure(t, Skipped)
	if b.Ledger.size() != 0 {
		t.Errorf("remembered %+v", b.Ledger.Entries())
	}
}

func TestWhatAPodForgesIsOverwritten(t *testing.T) {
	forged := func() map[string]string {
		return map[string]string{podreport.KeyStatus: "initialized", podreport.KeyDetails: `{"sandbox":"sandbox-1","netns":"/netns/1","specHash":"0","message":"traffic is redirected"}`}
	}
	open := []corev1.PodCondition{{Type: podreport.Condition, Status: corev1.ConditionTrue, Reason: podreport.ReasonInitialized, Message: "traffic is redirected"}}
	for name, c := range map[string]struct {
		asks  string
		rules bool
		want  Report
	}{
		"it asks":          {asks: "true", rules: true, want: Report{Status: podreport.StatusInitialized, Reason: podreport.ReasonInitialized}},
		"it does not ask":  {want: Report{Status: podreport.StatusRemoved, Reason: podreport.ReasonRemoved}},
		"it has opted out": {asks: "false", want: Report{Reason: podreport.ReasonNotRequired}},
		"it asks wrongly":  {asks: "yes", want: Report{Status: podreport.StatusFailed, Reason: podreport.ReasonInvalidAnnotation}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := askingPod()
			pod.Annotations, pod.Status.Conditions = forged(), open
			if delete(pod.Annotations, intent.KeyInitialize); c.asks != "" {
				pod.Annotations[intent.KeyInitialize] = c.asks
			}
			b := newBench(t)
			b.pods.pod = pod
			if _, err := b.Ensure(t.Context(), Watch, b.sandbox); err != nil && !Permanent(err) {
				t.Fatal(err)
			}
			if (b.backend.rules("/netns/1") != "") != c.rules {
				t.Errorf("rules %q", b.backend.rules("/netns/1"))
			}
			got := b.lastReport(t)
			if got.Status != c.want.Status || got.Reason != c.want.Reason {
				t.Errorf("report %+v", got)
			}
			if d := decide(queued{report: got}, written{}, pod, false, metav1Now().Time); !d.write {
				t.Error("what was forged stays on the pod")
			}
		})
	}
}

// The watch cache shows a pod as it was for a while after our report.
func TestARemovalIsToldOnce(t *testing.T) {
	b := newBench(t)
	b.ensure(t, Changed)
	b.says(t, b.lastReport(t))
	b.pods.pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: podreport.Condition}}
	b.pods.pod.Annotations[intent.KeyInitialize] = "false"
	b.ensure(t, Changed)
	b.ensure(t, Unchanged)
	if n := len(b.reporter.reports); n != 2 || b.lastReport(t).Reason != podreport.ReasonRemoved {
		t.Errorf("%d reports, the last one %+v", n, b.lastReport(t))
	}
}

func TestASkippedPodIsForgottenWithItsSandbox(t *testing.T) {
	for name, change := range map[string]func(*bench){
		"it has finished":     func(b *bench) { b.pods.pod.Status.Phase = corev1.PodSucceeded },
		"its sandbox is gone": func(b *bench) { b.pods.pod.Annotations = nil; clear(b.finder.sandboxes) },
		"its sandbox lost the rules": func(b *bench) {
			b.pods.pod.Annotations = nil
			b.Ledger.Mark(b.sandbox, FailedPod, true)
			clear(b.backend.held)
			b.Ledger.Forget("sandbox-1")
		},
		"it failed before it had one": func(b *bench) {
			b.pods.pod.Annotations = nil
			b.Ledger.Forget("sandbox-1")
			b.Ledger.Mark(b.sandbox, FailedPod, true)
			clear(b.backend.held)
		},
	} {
		b := newBench(t)
		b.ensure(t, Changed)
		change(b)
		b.ensure(t, Skipped)
		if b.Ledger.size() != 0 {
			t.Errorf("%s: remembered %+v", name, b.Ledger.Entries())
		}
	}
}
