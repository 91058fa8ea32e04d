package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/events"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
)

// A runtime without NRI is reported once for each absence, and not while it restarts.
func TestARuntimeWithoutNRIIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorder := events.NewFakeRecorder(10)
		var offered, checked atomic.Bool
		e := earlyHook{offered: func() (bool, bool) { return offered.Load(), checked.Load() }, recorder: recorder, node: "node1", log: logr.Discard()}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Start(ctx) }()
		after := func(d time.Duration, want int) {
			t.Helper()
			<-time.After(d)
			synctest.Wait()
			if n := len(recorder.Events); n != want {
				t.Errorf("%d events, want %d", n, want)
			}
		}
		after(2*maxNRIAbsence, 0) // no attempt to connect yet
		checked.Store(true)
		after(maxNRIAbsence/2, 0)
		offered.Store(true)
		after(2*maxNRIAbsence, 0) // a restart of the runtime
		offered.Store(false)
		after(maxNRIAbsence+2*time.Second, 1)
		after(10*maxNRIAbsence, 1)
		if got := <-recorder.Events; !strings.HasPrefix(got, "Warning NoEarlyHook the container runtime offers no NRI") {
			t.Errorf("event %q", got)
		}
		offered.Store(true)
		after(2*time.Second, 0)
		offered.Store(false)
		after(2*maxNRIAbsence, 1)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestTheBuildIsAMetric(t *testing.T) {
	r := prometheus.NewRegistry()
	r.MustRegister(Build{Version: "1.2.3", Revision: "abc"}.metric())
	families, err := r.Gather()
	if err != nil || families[0].GetName() != "istio_pod_network_controller_build_info" {
		t.Fatal(families, err)
	}
	labels := map[string]string{}
	for _, l := range families[0].GetMetric()[0].GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	if labels["version"] != "1.2.3" || labels["revision"] != "abc" || !strings.HasPrefix(labels["goversion"], "go") {
		t.Error(labels)
	}
}

// An error refuses the pod unless the agent fails open. For NRI, package nri decides that.
func TestWhatAHookRefuses(t *testing.T) {
	away := errors.New("away")
	for name, c := range map[string]struct {
		err      error
		failOpen bool
		refused  bool
	}{
		"nothing is wrong":           {},
		"an error":                   {err: away, refused: true},
		"an error, and we fail open": {err: away, failOpen: true},
		"a pod that is not known":    {err: podnet.ErrNoPod},
		"the same, and we fail open": {err: podnet.ErrNoPod, failOpen: true},
	} {
		if err := cniHookOf(ensurer{failOpen: c.failOpen}).refusal(c.err); (err != nil) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHooksRefuseUntilTheCoreIsSet(t *testing.T) {
	e := ensurer{core: newCoreHolder()}
	if _, err := e.Ensure(t.Context(), podnet.Sandbox{}); !errors.Is(err, podnet.ErrPodsUnknown) {
		t.Error(err)
	}
	if err := cniHookOf(e).refusal(podnet.ErrPodsUnknown); !errors.Is(err, podnet.ErrPodsUnknown) {
		t.Error(err)
	}
	if host, known := e.hostNetwork(t.Context(), podnet.Sandbox{}); host || known {
		t.Error("hostNetwork is known without a core")
	}
	e.core.contact.Note(t.Context(), "start", errors.New("connection refused"))
	if err := e.core.check(t.Context()); !errors.Is(err, podnet.ErrPodsUnknown) || !strings.Contains(err.Error(), "connection refused") {
		t.Error(err)
	}
}

// The agent's own namespace passes together with those that are excluded.
func TestWhichNamespacesPass(t *testing.T) {
	for name, c := range map[string]struct {
		own  string
		want []string
	}{"an agent with a namespace": {"mesh", []string{"kube-system", "mesh"}}, "an agent without one": {"", []string{"kube-system"}}} {
		o := Options{Intent: intent.Config{ExcludedNamespaces: []string{"kube-system"}, AgentNamespace: c.own}}
		if got := o.passNamespaces(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v", name, got)
		}
	}
}
