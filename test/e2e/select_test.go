package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pod without a proxy would lose its network if the rules led its traffic to a port where nobody listens, so the
// namespace's word counts for pods with a proxy only.
//
//e2e:rounds core nftables
func TestNamespaceAsksForItsPodsWithAProxy(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	bare := s.start(t, newPod("bare", nil, appContainer()))
	pod := s.startMesh(t, meshPod("meshed", nil))
	wantReport(t, s, pod, isReporter)
	if _, ok := s.rules(t, pod); !ok {
		t.Error("the pod holds no rules")
	}
	wantInbound(t, pod, families()[0], appPort, true)

	s.wantNoRules(t, bare)
	wantUntouched(t, s.await(t, bare.Name, isRunning))
}

// wantReport wants the annotations and the condition of a programmed pod to tell what the runtime knows. Its hook is one of a pod that asked before it
// started (isReporter) or when it ran already (isLate).
func wantReport(t *testing.T, s *space, pod *corev1.Pod, hooked func(hook string) bool) {
	t.Helper()
	d := readDetails(t, pod)
	sandbox := s.sandboxOf(t, pod)
	if d.Sandbox != sandbox.ID || !hooked(d.Hook) || d.Backend != backend() || len(d.SpecHash) != 16 || d.Message == "" {
		t.Errorf("details are %+v, the sandbox is %s", d, sandbox.ID)
	}
	if age := time.Since(d.Time); age < -time.Second || age > patience {
		t.Errorf("details are of %s", d.Time)
	}
	if c := conditionOf(pod); c.Reason != "Initialized" || c.LastTransitionTime.IsZero() || c.Message == "" {
		t.Errorf("the condition is %+v", c)
	}
}

//e2e:rounds core nftables
func TestPodOptsOutOfItsNamespace(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	out := s.start(t, meshPod("out", map[string]string{keyInitialize: "false"}))
	s.startMesh(t, meshPod("in", nil)) // by then the agent has seen the other one, too
	s.wantNoRules(t, out)
	wantInbound(t, out, families()[0], appPort, false)
	wantUntouched(t, s.await(t, out.Name, isRunning))
}

// Nobody should have to restart an application to get it into the mesh, or out of it.
//
//e2e:rounds core nftables iptables nri
func TestRunningPodOptsInAndOutAgain(t *testing.T) {
	t.Parallel()
	s := newSpace(t, nil)
	f := families()[0]
	pod := s.start(t, meshPod("undecided", nil))
	wantInbound(t, pod, f, appPort, false)
	s.wantOutbound(t, pod, f.at(1, worldPort), false)

	s.annotate(t, pod.Name, map[string]any{keyInitialize: "true"})
	programmed := s.await(t, pod.Name, hasStatus(statusInitialized))
	wantReport(t, s, programmed, isLate)
	wantInbound(t, pod, f, appPort, true)
	s.wantOutbound(t, pod, f.at(2, worldPort), true)

	s.annotate(t, pod.Name, map[string]any{keyInitialize: "false"})
	opened := s.await(t, pod.Name, hasStatus(statusRemoved))
	if got, want := readDetails(t, opened).Sandbox, readDetails(t, programmed).Sandbox; got != want {
		t.Errorf("the sandbox is %s, was %s", got, want)
	}
	s.wantNoRules(t, pod)
	wantInbound(t, pod, f, appPort, false)
	s.wantOutbound(t, pod, f.at(3, worldPort), false)
}

// Taking an annotation off a namespace is easily done, and would take all of its pods out of the mesh at once.
//
//e2e:rounds nftables
func TestNamespaceAnnotationIsFollowedInAndNeverOpensRunningPods(t *testing.T) {
	t.Parallel()
	s := newSpace(t, nil)
	pod := s.start(t, meshPod("early", nil))
	s.annotateSelf(t, map[string]any{keyInitialize: "true"})
	before := readDetails(t, s.await(t, pod.Name, hasStatus(statusInitialized)))
	wantInbound(t, pod, families()[0], appPort, true)

	s.annotateSelf(t, map[string]any{keyInitialize: nil})
	eventually(t, "the API server's policies see the annotation gone", func(ctx context.Context) error {
		trial, err := s.pods().Create(ctx, meshPod("trial", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && len(trial.Spec.ReadinessGates) > 0 {
			err = errors.New("they still add a readiness gate")
		}
		return err
	})
	late := s.start(t, meshPod("late", nil))
	s.startMesh(t, meshPod("asking", asked())) // by then the agent has seen the other one, too
	s.wantNoRules(t, late)
	wantUntouched(t, s.await(t, late.Name, isRunning))
	wantInbound(t, pod, families()[0], appPort, true)
	after := readDetails(t, s.await(t, pod.Name, hasStatus(statusInitialized)))
	after.Time, after.Message = before.Time, before.Message // an agent that has not seen its own report yet may say why the rules stay
	if after.first() != before.first() {
		t.Errorf("the report of the running pod is %+v, was %+v", after, before)
	}
}
