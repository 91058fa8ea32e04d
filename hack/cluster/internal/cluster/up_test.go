package cluster

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/hack/cluster/internal/daemon"
	"istio-pod-network-controller/hack/cluster/internal/plan"
	"istio-pod-network-controller/hack/cluster/internal/state"
)

func TestASecondClusterIsRefusedWithTheFirstOnesAge(t *testing.T) {
	l := testLayout()
	l.Run = t.TempDir()
	c := &Cluster{Plan: plan.Default(), Layout: l, Out: io.Discard}
	if err := c.refuseSecondCluster(); err != nil {
		t.Errorf("nothing is up: %v", err)
	}
	s := &state.State{Began: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	if err := s.Save(l.State()); err != nil {
		t.Fatal(err)
	}
	if err := c.refuseSecondCluster(); err == nil || !strings.Contains(err.Error(), "2026-01-02 03:04:05") {
		t.Errorf("got %v", err)
	}
}

func TestDied_recordOfHolders_clusterThatLivesIsKept(t *testing.T) {
	own, err := daemon.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	gone := daemon.Process{PID: own.PID, Started: own.Started - 1} // the number is another process's now
	l := testLayout()
	l.Run = t.TempDir()
	c := &Cluster{Plan: plan.Default(), Layout: l, Out: io.Discard}
	if c.died() {
		t.Error("died, although there never was one")
	}
	for name, tt := range map[string]struct {
		state state.State
		want  bool
	}{
		"both live":                 {state: state.State{Node: own, ControlPlane: own}},
		"the node alone is gone":    {state: state.State{Node: gone, ControlPlane: own}},
		"both are gone":             {state: state.State{Node: gone, ControlPlane: gone}, want: true},
		"it died before it had any": {want: true},
	} {
		if err := tt.state.Save(l.State()); err != nil {
			t.Fatal(err)
		}
		if got := c.died(); got != tt.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func TestStatusIsNotReadyWhileOneDaemonIsDown(t *testing.T) {
	c := &Cluster{Plan: plan.Default(), Layout: testLayout(), Out: io.Discard}
	status := c.Status(&state.State{Ready: true})
	if status.Ready {
		t.Error("ready without its namespaces")
	}
	var out strings.Builder
	status.Daemons["kubelet"] = false
	status.Print(&out)
	for _, want := range []string{"kubelet                  STOPPED", "203.0.113.0/24", "172.30.0.11,fd00:172:30::11"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the status lacks %q:\n%s", want, out.String())
		}
	}
}
