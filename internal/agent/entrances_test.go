package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/events"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
)

// A runtime without NRI is told of once for each time, and not while it restarts.
func TestARuntimeWithoutNRIIsToldOfOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorder := events.NewFakeRecorder(10)
		offered, looked := false, false
		e := earlyEntrance{offered: func() (bool, bool) { return offered, looked }, recorder: recorder, node: "node1", log: logr.Discard()}
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
		after(2*absence, 0) // nobody has looked
		looked = true
		after(absence/2, 0)
		offered = true
		after(2*absence, 0) // a restart of the runtime
		offered = false
		after(absence+2*time.Second, 1)
		after(10*absence, 1)
		if got := <-recorder.Events; !strings.HasPrefix(got, "Warning NoEarlyEntrance the container runtime offers no NRI") {
			t.Errorf("event %q", got)
		}
		offered = true
		after(2*time.Second, 0)
		offered = false
		after(2*absence, 1)
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

// What both early entrances do with an error: it refuses the pod, but for fail-open, which CNI decides here and NRI by itself.
func TestWhatAnEntranceRefuses(t *testing.T) {
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
		if err := (chain{entrance: entrance{failOpen: c.failOpen}}).verdict(c.err); (err != nil) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAShutDoorRefusesAndForgetsNothing(t *testing.T) {
	e := entrance{door: &door{}}
	if _, err := e.Ensure(t.Context(), podnet.Sandbox{}); !errors.Is(err, errNoAPI) {
		t.Error(err)
	}
	if err := (chain{entrance: e}).verdict(errNoAPI); !errors.Is(err, errNoAPI) {
		t.Error(err)
	}
	if host, known := e.hostNetwork(t.Context(), podnet.Sandbox{}); host || known {
		t.Error("somebody knows")
	}
	e.Forget("sandbox")
	e.door.failed(errors.New("connection refused"))
	if err := e.door.check(t.Context()); !errors.Is(err, errNoAPI) || !strings.Contains(err.Error(), "connection refused") {
		t.Error(err)
	}
}

// The agent's own namespace passes together with those that are excluded.
func TestWhichNamespacesPass(t *testing.T) {
	for name, c := range map[string]struct {
		own  string
		want []string
	}{"of its own": {"mesh", []string{"kube-system", "mesh"}}, "of nobody's": {"", []string{"kube-system"}}} {
		o := Options{Intent: intent.Config{ExcludedNamespaces: []string{"kube-system"}, AgentNamespace: c.own}}
		if got := o.untouched(); !slices.Equal(got, c.want) {
			t.Errorf("a namespace %s: %v", name, got)
		}
	}
}
