package cluster

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/hack/cluster/internal/daemon"
	"istio-pod-network-controller/hack/cluster/internal/layout"
	"istio-pod-network-controller/hack/cluster/internal/plan"
	"istio-pod-network-controller/hack/cluster/internal/state"
)

// freshCluster has directories and a cgroup of its own, and data of an earlier cluster.
func freshCluster(t *testing.T) *Cluster {
	t.Helper()
	dir := t.TempDir()
	c := &Cluster{Plan: plan.Default("kit-test-that-is-not-there"), Layout: layout.Layout{Cache: filepath.Join(dir, "cache"), Run: filepath.Join(dir, "run")}, Out: io.Discard}
	for _, dir := range []string{c.Layout.Run, c.Layout.Data()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(c.Layout.Data(), "etcd"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// sleeper is a process that ends with the test at the latest, or none.
func sleeper(t *testing.T, wanted bool) daemon.Process {
	t.Helper()
	if !wanted {
		return daemon.Process{}
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }()
	p, err := daemon.Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestClear_noRecordAfterAReboot_removesTheData(t *testing.T) {
	c := freshCluster(t)
	if err := c.clear(); err != nil {
		t.Fatal(err)
	}
	if exists(c.Layout.Data()) {
		t.Error("the data of the earlier cluster is still there")
	}
	if err := c.clear(); err != nil {
		t.Errorf("nothing is left: %v", err)
	}
}

func TestClear_record_onlyAClusterThatIsUpIsKept(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, tt := range map[string]struct {
		ready, node, controlPlane bool
		kept                      bool
	}{
		"it is up":                        {ready: true, node: true, controlPlane: true, kept: true},
		"the node alone is gone":          {ready: true, controlPlane: true, kept: true},
		"both are gone":                   {ready: true},
		"its start was killed":            {node: true, controlPlane: true},
		"it was killed before it had any": {},
	} {
		t.Run(name, func(t *testing.T) {
			c := freshCluster(t)
			s := state.State{Began: began, Ready: tt.ready, Nodes: make([]state.Holder, 2)}
			s.Nodes[1].Process, s.ControlPlane.Process = sleeper(t, tt.node), sleeper(t, tt.controlPlane)
			if err := s.Save(c.Layout.State()); err != nil {
				t.Fatal(err)
			}
			err := c.clear()
			if saysAge := err != nil && strings.Contains(err.Error(), "2026-01-02 03:04:05"); saysAge != tt.kept || !tt.kept && err != nil {
				t.Errorf("got %v; want the age of a cluster that is kept", err)
			}
			if alive := s.Nodes[1].Alive() || s.ControlPlane.Alive(); alive != tt.kept || exists(c.Layout.Data()) != tt.kept {
				t.Errorf("alive %v, data %v; want %v", alive, exists(c.Layout.Data()), tt.kept)
			}
		})
	}
}

func TestStatusIsNotReadyWhileOneDaemonIsDown(t *testing.T) {
	c := &Cluster{Plan: plan.Default("x"), Layout: layout.Layout{Source: "/source", Cache: "/cache", Run: "/run/cluster"}, Out: io.Discard}
	status := c.Status(&state.State{Ready: true, Nodes: make([]state.Holder, 2)})
	if status.Ready {
		t.Error("ready without its namespaces")
	}
	var out strings.Builder
	status.Daemons["kubelet"] = false
	status.Print(&out)
	for _, want := range []string{"kubelet                  STOPPED", "203.0.113.0/24", "node1 172.30.0.11,fd00:172:30::11", "node2 172.30.0.12,"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the status lacks %q:\n%s", want, out.String())
		}
	}
}
