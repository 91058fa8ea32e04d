package controllers

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

func TestEnsureProgramsAndReportsOnce(t *testing.T) {
	b := newBench(t)
	b.ensure(t, Changed)
	b.ensure(t, Unchanged)
	want := Report{
		Sandbox: podnet.Sandbox{
			Namespace: "shop", Name: "cart", UID: "uid-1", ID: "sandbox-1", NetNS: "/netns/1", Identity: podnet.Identity{Ino: 1},
		},
		Status: podreport.StatusInitialized, Reason: podreport.ReasonInitialized, Message: "traffic is redirected", Hook: Watch, Backend: "fake",
	}
	got := b.lastReport(t)
	if got.SpecHash == "" {
		t.Error("no spec hash")
	}
	got.SpecHash = ""
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	wantMetrics := ensureTotal(map[string]int{"watch changed": 1, "watch unchanged": 1}) + `# HELP istio_pod_network_controller_pods Pods of this node that the agent has to do with, by state: programmed, removed, failed, invalid (failed, and the pod's owner has to correct it), or others (another project redirects them).
# TYPE istio_pod_network_controller_pods gauge
istio_pod_network_controller_pods{state="failed"} 0
istio_pod_network_controller_pods{state="invalid"} 0
istio_pod_network_controller_pods{state="others"} 0
istio_pod_network_controller_pods{state="programmed"} 1
istio_pod_network_controller_pods{state="removed"} 0
`
	if err := testutil.GatherAndCompare(b.registry, strings.NewReader(wantMetrics), MetricPrefix+"ensure_total", MetricPrefix+"pods"); err != nil {
		t.Error(err)
	}
}

// A pod that waits for its sandbox is no result; one that could not be read yet has no state.
func TestWhatIsNotCounted(t *testing.T) {
	b := newBench(t)
	clear(b.finder.sandboxes)
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); !absent(err) {
		t.Fatal(err)
	}
	b.Ledger.Mark(b.sandbox, "", true)
	want := ensureTotal(nil) + `# HELP istio_pod_network_controller_pods Pods of this node that the agent has to do with, by state: programmed, removed, failed, invalid (failed, and the pod's owner has to correct it), or others (another project redirects them).
# TYPE istio_pod_network_controller_pods gauge
istio_pod_network_controller_pods{state="failed"} 0
istio_pod_network_controller_pods{state="invalid"} 0
istio_pod_network_controller_pods{state="others"} 0
istio_pod_network_controller_pods{state="programmed"} 0
istio_pod_network_controller_pods{state="removed"} 0
`
	if err := testutil.GatherAndCompare(b.registry, strings.NewReader(want), MetricPrefix+"ensure_total", MetricPrefix+"pods"); err != nil {
		t.Error(err)
	}
}

// The fault of the 2018 controller: a pod that says it is initialized, in a sandbox that is not.
func TestARecreatedSandboxIsProgrammedWhateverTheAnnotationsSay(t *testing.T) {
	b := newBench(t)
	b.pods.pod.Annotations[podreport.KeyStatus] = string(podreport.StatusInitialized)
	b.ensure(t, Changed)
	b.finder.sandboxes["uid-1"] = podnet.Sandbox{ID: "sandbox-2", NetNS: "/netns/2"}
	b.ensure(t, Changed)
	if b.backend.held["/netns/2"] == "" || b.lastReport(t).Sandbox.ID != "sandbox-2" {
		t.Error("the new sandbox was not programmed and reported")
	}
	if n := len(b.Ledger.Entries()); n != 1 {
		t.Errorf("%d sandboxes of one pod in the ledger", n)
	}
}

func TestOnlyThePodsOwnFalseTakesRulesAway(t *testing.T) {
	b := newBench(t)
	b.ensure(t, Changed)
	b.pods.pod.Annotations = map[string]string{podreport.KeyStatus: string(podreport.StatusInitialized)} // the pod no longer asks
	b.ensure(t, Skipped)
	if b.backend.held["/netns/1"] == "" {
		t.Fatal("a pod was opened that did not ask for it")
	}
	b.pods.pod.Annotations[intent.KeyInitialize] = "false"
	b.ensure(t, Changed)
	if b.backend.held["/netns/1"] != "" || b.lastReport(t).Status != podreport.StatusRemoved {
		t.Errorf("rules %q, report %+v", b.backend.held["/netns/1"], b.lastReport(t))
	}
	b.ensure(t, Unchanged)
}

func TestAReportDoesNotOutliveItsSandbox(t *testing.T) {
	b := newBench(t)
	b.pods.pod.Annotations = map[string]string{podreport.KeyStatus: string(podreport.StatusInitialized)}
	b.pods.pod.Status.Conditions = []corev1.PodCondition{{Type: podreport.Condition, Status: corev1.ConditionTrue, Reason: podreport.ReasonInitialized}}
	b.ensure(t, Skipped)
	if got := b.lastReport(t); got.Status != podreport.StatusRemoved || !strings.Contains(got.Message, "new one gets none") {
		t.Errorf("report %+v", got)
	}
}

// The controller of 2018 wrote the annotation, and no condition: there is no sandbox that had rules of ours.
func TestAnAnnotationAloneIsNoReport(t *testing.T) {
	b := newBench(t)
	b.pods.pod.Annotations[podreport.KeyStatus] = string(podreport.StatusInitialized)
	b.pods.pod.Spec.InitContainers = []corev1.Container{{Name: "istio-init"}}
	b.ensure(t, Skipped)
	if got := b.lastReport(t); got.Status != "" || got.Reason != podreport.ReasonNotRequired || got.Message != string(intent.IstioInit) {
		t.Errorf("report %+v", got)
	}
}

// What somebody gets wrong in a running pod takes it out of no Service: its rules are those of before.
func TestEnsure_wrongEdit_isANoteAndRulesStay(t *testing.T) {
	b := newBench(t)
	b.ensure(t, Changed)
	b.pods.pod.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "http"
	result, err := b.Ensure(t.Context(), Watch, b.sandbox)
	if result != Failed || !Permanent(err) {
		t.Fatalf("result %q, error %v", result, err)
	}
	got := b.lastReport(t)
	if got.Status != podreport.StatusInitialized || got.condition() != "True" || !strings.HasPrefix(got.Notes, "without effect: traffic.sidecar") || !strings.Contains(got.Notes, `"http"`) {
		t.Errorf("report %+v", got)
	}
	if b.backend.held["/netns/1"] == "" {
		t.Error("the rules are gone")
	}
	delete(b.pods.pod.Annotations, "traffic.sidecar.istio.io/excludeOutboundPorts")
	b.ensure(t, Unchanged)
}

func TestErrorsThatMayPassAreReportedAndReturned(t *testing.T) {
	b := newBench(t)
	b.backend.err = errors.New("kernel says no")
	result, err := b.Ensure(t.Context(), Watch, b.sandbox)
	if result != Failed || err == nil || Permanent(err) || !strings.Contains(err.Error(), "kernel says no") {
		t.Fatalf("result %q, error %v", result, err)
	}
	if got := b.lastReport(t); got.Status != podreport.StatusFailed || got.Reason != podreport.ReasonRedirectFailed {
		t.Errorf("report %+v", got)
	}
}

func TestAPodThatIsNotThereYetIsNoFailure(t *testing.T) {
	b := newBench(t)
	delete(b.finder.sandboxes, "uid-1")
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); !errors.Is(err, podnet.ErrNotReady) {
		t.Errorf("error %v", err)
	}
	b.finder.sandboxes["uid-1"] = podnet.Sandbox{ID: "s", NetNS: "/netns/1"}
	b.backend.err = fmt.Errorf("open: %w", podnet.ErrGone)
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); !errors.Is(err, podnet.ErrGone) {
		t.Errorf("error %v", err)
	}
	if len(b.reporter.reports) != 0 {
		t.Errorf("reported: %+v", b.reporter.reports)
	}
}

func TestPodsThatAreLeftAlone(t *testing.T) {
	cases := map[string]func(*bench){
		"neither pod nor namespace asks": func(b *bench) { b.pods.pod.Annotations = nil },
		"opted out, not yet there":       func(b *bench) { b.pods.pod.Annotations[intent.KeyInitialize] = "false"; clear(b.finder.sandboxes) },
		"not asked, sandbox is new": func(b *bench) {
			b.pods.pod.Annotations = map[string]string{podreport.KeyStatus: "failed"}
			clear(b.finder.sandboxes)
		},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			change(b)
			b.ensure(t, Skipped)
			if len(b.backend.held) != 0 || len(b.reporter.reports) != 0 {
				t.Errorf("rules %v, reports %+v", b.backend.held, b.reporter.reports)
			}
		})
	}
}

func TestAPodThatTheServerDoesNotKnowIsForgotten(t *testing.T) {
	b := newBench(t)
	b.ensure(t, Changed)
	b.pods.pod.UID = "uid-2" // another pod has its name
	if result, err := b.Ensure(t.Context(), NRI, b.sandbox); result != Skipped || !errors.Is(err, podnet.ErrNoPod) {
		t.Errorf("result %q, error %v", result, err)
	}
	if n := len(b.Ledger.Entries()); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

// The readiness gate closes when the pod's sandbox is being made anew, and opens for the one that is programmed.
func TestTheGateFollowsTheSandbox(t *testing.T) {
	b := newBench(t)
	known := b.sandbox
	known.ID, known.NetNS = "sandbox-1", "/netns/1"
	if _, err := b.Ensure(t.Context(), NRI, known); err != nil {
		t.Fatal(err)
	}
	b.pods.pod.Annotations[podreport.KeyStatus] = string(podreport.StatusInitialized)
	clear(b.finder.sandboxes) // the runtime does not list a sandbox while it makes it
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); !errors.Is(err, podnet.ErrNotReady) {
		t.Fatal(err)
	}
	if got := b.lastReport(t); got.Reason != podreport.ReasonInitialized {
		t.Errorf("report %+v of a sandbox in the making", got)
	}
	b.backend.err = podnet.ErrGone // its namespace is gone: it was the old one
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); !errors.Is(err, podnet.ErrNotReady) {
		t.Fatal(err)
	}
	b.backend.err = nil
	if got := b.lastReport(t); got.Reason != podreport.ReasonSandboxNotReady || got.condition() != corev1.ConditionFalse {
		t.Errorf("report %+v", got)
	}
	b.finder.sandboxes["uid-1"] = podnet.Sandbox{ID: "sandbox-2", NetNS: "/netns/2"}
	b.ensure(t, Changed)
	if got := b.lastReport(t); got.Sandbox.ID != "sandbox-2" || got.condition() != corev1.ConditionTrue {
		t.Errorf("report %+v", got)
	}
}

// A pod that waits for our gate must not wait for ever when there is nothing to wait for.
func TestAGateOpensForAPodThatNeedsNoRules(t *testing.T) {
	b := newBench(t)
	b.pods.pod.Annotations = nil
	b.pods.pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: podreport.Condition}}
	b.ensure(t, Skipped)
	if got := b.lastReport(t); got.Status != "" || got.Reason != podreport.ReasonNotRequired || got.condition() != corev1.ConditionTrue {
		t.Errorf("report %+v", got)
	}
}

func TestHooksDoNotWorkOnOnePodAtOnce(t *testing.T) {
	b := newBench(t)
	known := b.sandbox
	known.ID, known.NetNS = "sandbox-1", "/netns/1"
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			s := b.sandbox
			if i%2 == 0 {
				s = known
			}
			if _, err := b.Ensure(t.Context(), Hook(fmt.Sprint(i%3)), s); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if b.backend.clash {
		t.Error("two calls worked in one namespace at once")
	}
	if len(b.turns.pod) != 0 {
		t.Errorf("%d locks are left", len(b.turns.pod))
	}
}

func TestEnsure_check_repairsAndForgets(t *testing.T) {
	b := newBench(t)
	b.ensure(t, Changed)
	b.backend.held["/netns/1"] = "spoilt"
	b.verify(t)
	if b.backend.held["/netns/1"] == "spoilt" {
		t.Error("drift was not repaired")
	}
	b.backend.err = podnet.ErrGone
	b.verify(t)
	if n := len(b.Ledger.Entries()); n != 0 {
		t.Errorf("%d entries are left of a namespace that is gone", n)
	}
}

// A finished pod waits for nothing: its last report stays.
func TestAFinishedPodKeepsItsLastReport(t *testing.T) {
	b := newBench(t)
	b.pods.pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: podreport.Condition}}
	b.ensure(t, Changed)
	b.pods.pod.Status.Phase = corev1.PodSucceeded
	b.ensure(t, Skipped)
	if got := b.lastReport(t); len(b.reporter.reports) != 1 || got.Reason != podreport.ReasonInitialized {
		t.Errorf("%d reports, the last one %+v", len(b.reporter.reports), got)
	}
}

// A kubelet that was interrupted reports a pod that was starting as failed, and starts it again.
func TestAPodThatStartsHasNotFinished(t *testing.T) {
	for _, by := range []Hook{NRI, CNI} {
		b := newBench(t)
		b.pods.pod.Status.Phase = corev1.PodFailed
		b.ensure(t, Skipped)
		known := b.sandbox
		known.ID, known.NetNS = "sandbox-1", "/netns/1"
		if got, err := b.Ensure(t.Context(), by, known); got != Changed || err != nil {
			t.Errorf("%s: result %q, error %v", by, got, err)
		}
	}
}

// A node that starts many pods would otherwise be asked for each of them again and again.
func TestARuntimeThatAnnouncesSandboxesIsNotAsked(t *testing.T) {
	b := newBench(t)
	announced := true
	b.Announcers = []func() bool{func() bool { return announced }}
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); !errors.Is(err, podnet.ErrNotReady) || b.finder.asked.Load() != 0 {
		t.Fatalf("error %v after %d questions", err, b.finder.asked.Load())
	}
	known := b.sandbox
	known.ID, known.NetNS = "sandbox-1", "/netns/1"
	if _, err := b.Ensure(t.Context(), NRI, known); err != nil {
		t.Fatal(err)
	}
	b.ensure(t, Unchanged)
	if b.finder.asked.Load() != 0 {
		t.Errorf("%d questions for a sandbox that was announced", b.finder.asked.Load())
	}
	b.backend.err = fmt.Errorf("enter: %w", podnet.ErrGone)
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); !errors.Is(err, podnet.ErrGone) {
		t.Errorf("error %v", err)
	}
	b.backend.err = nil
	b.pods.pod.Status.PodIPs = []corev1.PodIP{{IP: "192.0.2.1"}}
	b.finder.sandboxes["uid-1"] = podnet.Sandbox{ID: "sandbox-2", NetNS: "/netns/2"}
	b.ensure(t, Changed)
	if b.backend.held["/netns/2"] == "" {
		t.Error("a sandbox that no hook announced was not found")
	}
	announced = false
	asked := b.finder.asked.Load()
	if b.ensure(t, Unchanged); b.finder.asked.Load() == asked {
		t.Error("a runtime that announces nothing was not asked")
	}
}
