package sidecars

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
)

func exitedApp(name string, attempt uint32, code int32) sidecar.Application {
	return sidecar.Application{ID: name, Name: name, Attempt: attempt, State: sidecar.Exited, ExitCode: code}
}

func TestStaysEnded_restartPolicies_asTheKubelet(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	never := corev1.ContainerRestartPolicyNever
	pod := func(policy corev1.RestartPolicy, changes ...func(*corev1.Pod)) *corev1.Pod {
		out := thePod()
		out.Spec.RestartPolicy, out.Spec.Containers = policy, []corev1.Container{{Name: "app"}, {Name: "helper"}}
		out.Spec.InitContainers = []corev1.Container{{Name: "init"}}
		for _, change := range changes {
			change(out)
		}
		return out
	}
	both := func(code int32) []sidecar.Application {
		return []sidecar.Application{exitedApp("init", 0, 0), exitedApp("app", 0, code), exitedApp("helper", 0, 0)}
	}
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		ended []sidecar.Application
		stays bool
	}{
		"a Job that completes":                        {pod(corev1.RestartPolicyNever), both(0), true},
		"a Job that fails, and is not tried again":    {pod(corev1.RestartPolicyNever), both(1), true},
		"a Job that completes, and would be tried":    {pod(corev1.RestartPolicyOnFailure), both(0), true},
		"a Job that fails, and is tried again":        {pod(corev1.RestartPolicyOnFailure), both(1), false},
		"a Job that failed once, and has completed":   {pod(corev1.RestartPolicyOnFailure), append([]sidecar.Application{exitedApp("app", 0, 1), exitedApp("app", 1, 0)}, exitedApp("helper", 0, 0)), true},
		"a Job that had completed once, and fails":    {pod(corev1.RestartPolicyOnFailure), append([]sidecar.Application{exitedApp("app", 1, 1), exitedApp("app", 0, 0)}, exitedApp("helper", 0, 0)), false},
		"an application that crashes":                 {pod(corev1.RestartPolicyAlways), both(1), false},
		"an application that ends without an error":   {pod(corev1.RestartPolicyAlways), both(0), false},
		"the same, and the pod is being deleted":      {pod(corev1.RestartPolicyAlways, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), both(0), true},
		"an init container, before the application":   {pod(corev1.RestartPolicyNever), []sidecar.Application{exitedApp("init", 0, 0)}, false},
		"the first of two, before the second started": {pod(corev1.RestartPolicyNever), []sidecar.Application{exitedApp("app", 0, 0)}, false},
		"a container with a policy of its own": {
			pod(corev1.RestartPolicyNever, func(p *corev1.Pod) { p.Spec.Containers[0].RestartPolicy = &always }), both(0), false,
		},
		"containers whose own policies end the pod": {
			pod(corev1.RestartPolicyAlways, func(p *corev1.Pod) {
				p.Spec.Containers[0].RestartPolicy, p.Spec.Containers[1].RestartPolicy = &never, &never
			}), both(1), true,
		},
		"a container with rules of its own": {
			pod(corev1.RestartPolicyNever, func(p *corev1.Pod) {
				p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart}}
			}), both(1), false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := staysEnded(c.pod, c.ended); got != c.stays {
				t.Errorf("it stays ended: %t", got)
			}
		})
	}
}

// applications are the containers of one pod, of a node whose runtime tells of their ends.
type applications struct {
	*fakeNode
	policy corev1.RestartPolicy
	all    []sidecar.Application
	err    error
}

func (a *applications) Applications(context.Context, string) ([]sidecar.Application, error) {
	return slices.Clone(a.all), a.err
}

func (a *applications) CurrentPod(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	pod, err := a.fakeNode.CurrentPod(ctx, s)
	pod.Spec.RestartPolicy, pod.Spec.Containers = a.policy, []corev1.Container{{Name: "app"}}
	return pod, err
}

// The proxy goes with the last application container, and stays while one runs or will be started again.
func TestContainerEnded_lastApplication_finishesProxies(t *testing.T) {
	running := sidecar.Application{ID: "other", Name: "other", State: sidecar.Running}
	created := sidecar.Application{ID: "other", Name: "other", State: sidecar.Created}
	app := sidecar.Application{ID: "app", Name: "app", State: sidecar.Running} // the runtime has not noticed its end yet
	for name, c := range map[string]struct {
		policy   corev1.RestartPolicy
		change   func(*applications)
		code     int32
		finishes bool
	}{
		"a Job completes":                       {policy: corev1.RestartPolicyNever, finishes: true},
		"a Job fails and is tried again":        {policy: corev1.RestartPolicyOnFailure, code: 1},
		"an application crashes":                {policy: corev1.RestartPolicyAlways, code: 1},
		"the pod is being deleted":              {policy: corev1.RestartPolicyAlways, change: func(a *applications) { a.ending = true }, finishes: true},
		"the pod is being deleted, one runs":    {policy: corev1.RestartPolicyAlways, change: func(a *applications) { a.ending = true; a.all = append(a.all, running) }},
		"a Job completes, one runs":             {policy: corev1.RestartPolicyNever, change: func(a *applications) { a.all = append(a.all, running) }},
		"a Job completes, one is to be started": {policy: corev1.RestartPolicyNever, change: func(a *applications) { a.all = append(a.all, created) }},
		"the pod is gone":                       {policy: corev1.RestartPolicyAlways, change: func(a *applications) { a.gone = true }, finishes: true},
		"the container is none of the pod's":    {policy: corev1.RestartPolicyNever, change: func(a *applications) { a.all = nil }},
		"the runtime does not answer":           {policy: corev1.RestartPolicyNever, change: func(a *applications) { a.err = errors.New("not now") }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				t.Helper()
				n.behave = func(p *fakeProxy) { p.drains = 20 * time.Millisecond }
				a := &applications{fakeNode: n, policy: c.policy, all: []sidecar.Application{app}}
				m, stop := agent()
				defer stop()
				m.Runtime, m.Cluster = a, a
				m.Follow(sandboxOf("u1"))
				n.after(time.Second)
				if c.change != nil {
					n.change(func() { c.change(a) })
				}
				proxy, began := n.containers["c001"], time.Now()
				err := m.ContainerEnded(t.Context(), sandboxOf("u1"), exitedApp("app", 0, c.code))
				if took := time.Since(began); took > finishWait || (err != nil) != (a.err != nil) {
					t.Errorf("it took %s: %v", took, err)
				}
				if told := proxy.drained; told != c.finishes {
					t.Errorf("told to finish: %t", told)
				}
			})
		})
	}
}

// A proxy that has finished is not started again and is no failure, until it is clear that the sandbox stays.
func TestContainerEnded_finished_startsNoProxy(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = func(p *fakeProxy) { p.drains = 20 * time.Millisecond }
		a := &applications{fakeNode: n, policy: corev1.RestartPolicyNever, all: []sidecar.Application{exitedApp("app", 0, 0)}}
		for range 2 { // the second agent knows it, too
			m, stop := agent()
			m.Runtime, m.Cluster = a, a
			m.Follow(sandboxOf("u1"))
			n.after(time.Second)
			if err := m.ContainerEnded(t.Context(), sandboxOf("u1"), exitedApp("app", 0, 0)); err != nil {
				t.Error(err)
			}
			n.after(10 * time.Second)
			if got := n.running(); len(got) != 0 || n.next != 1 {
				t.Errorf("%v run, %d were made", got, n.next)
			}
			if said := n.mustSay(t, "u1", v1alpha1.Ended, false); said.Restarts != 0 || said.Message != "" || said.Final {
				t.Errorf("the ManagedProxy says %+v", said)
			}
			stop()
		}
		m, stop := agent()
		defer stop()
		m.Runtime, m.Cluster = a, a
		m.Follow(sandboxOf("u1"))
		n.after(2 * home.FinishedFor)
		n.mustSay(t, "u1", v1alpha1.Running, true)
	})
}

// A Job's pod says that it has finished a moment after its proxy has. Nothing announces that.
func TestContainerEnded_statusLate_staysEnded(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		a := &applications{fakeNode: n, policy: corev1.RestartPolicyNever, all: []sidecar.Application{exitedApp("app", 0, 0)}}
		m, stop := agent()
		defer stop()
		m.Runtime, m.Cluster = a, a
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		if err := m.ContainerEnded(t.Context(), sandboxOf("u1"), exitedApp("app", 0, 0)); err != nil {
			t.Error(err)
		}
		n.after(2 * time.Second)
		n.change(func() { n.finished, n.ending = true, true })
		n.after(cleanInterval)
		if said := n.mustSay(t, "u1", v1alpha1.Ended, false); !said.Final || m.Follows("u1") {
			t.Errorf("the ManagedProxy says %+v", said)
		}
	})
}

// An agent that starts looks for what is left before it follows its first sandbox: that an application has ended is not forgotten.
func TestSweep_applicationEndedLately_keepsHome(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		stop()
		left := m.Homes.Of(podnet.Key{PodUID: "u1", Sandbox: "sandbox-u1"})
		if err := errors.Join(os.Mkdir(left.Path, 0o700), left.NoteFinished()); err != nil {
			t.Fatal(err)
		}
		_, stop = agent()
		defer stop()
		n.after(time.Second)
		if !left.Notes().Finished(time.Now()) {
			t.Error("it is forgotten at once")
		}
		n.after(3 * home.FinishedFor)
		if _, err := os.Stat(left.Path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the directory is left, error %v", err)
		}
	})
}

// The runtime waits for the answer, so a sandbox that is not followed costs no question.
func TestContainerEnded_notFollowed_asksNothing(t *testing.T) {
	m := New(Config{Homes: home.Homes{Root: t.TempDir()}}) // without a runtime to ask
	if err := m.ContainerEnded(t.Context(), sandboxOf("u1"), exitedApp("app", 0, 0)); err != nil {
		t.Error(err)
	}
}

// containerd 1.7 does not say that the application has ended, and kills the proxy with the sandbox, which it still calls ready then.
func TestNoteEnds_applicationHasEnded_isNoFailureIfForGood(t *testing.T) {
	for name, c := range map[string]struct {
		all      []sidecar.Application
		finished bool
	}{
		"the Job's container has ended": {[]sidecar.Application{exitedApp("app", 0, 0)}, true},
		"it runs":                       {[]sidecar.Application{{ID: "app", Name: "app", State: sidecar.Running}}, false},
		"it was not started yet":        {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				a := &applications{fakeNode: n, policy: corev1.RestartPolicyNever, all: c.all}
				m, stop := agent()
				defer stop()
				m.Runtime, m.Cluster = a, a
				m.Follow(sandboxOf("u1"))
				n.after(time.Second)
				n.end("c001", 137)
				n.after(time.Second)
				state, restarts := v1alpha1.Running, int32(1)
				if c.finished {
					state, restarts = v1alpha1.Ended, 0
				}
				if said := n.mustSay(t, "u1", state, !c.finished); said.Restarts != restarts || (said.Message == "") != c.finished {
					t.Errorf("the ManagedProxy says %+v", said)
				}
			})
		})
	}
}
