package container

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

func (f *fakeCRI) ExecSync(_ context.Context, r *criv1.ExecSyncRequest) (*criv1.ExecSyncResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.states[r.GetContainerId()]; !ok {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	return &criv1.ExecSyncResponse{Stdout: []byte(r.GetCmd()[0]), Stderr: []byte("e"), ExitCode: int32(r.GetTimeout())}, nil
}

// A process that ends between the look and the signal is gone, and no fault of the runtime's.
func TestSignal_processHasEnded_isGone(t *testing.T) {
	c := exec.CommandContext(t.Context(), "true")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(c.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := process{fd: fd, id: "c1"}
	defer p.close()
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := p.signal(unix.SIGTERM); !errors.Is(err, sidecar.ErrGone) {
		t.Error(err)
	}
}

// proxyOf is a proxy of the pod shop/cart.
func proxyOf(id string, epoch uint32, state sidecar.State) sidecar.Container {
	return sidecar.Container{ID: id, Epoch: epoch, State: state, Labels: sidecar.Labels{PodNamespace: "shop", PodName: "cart", PodUID: "u1"}}
}

// logs makes logs, and returns a function that lists what there is.
func logs(t *testing.T, r *Runtime, names ...string) (there func() []string) {
	t.Helper()
	dir := filepath.Join(r.logRoot, "shop_cart_u1", sidecar.ContainerName)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return func() (out []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return out
	}
}

// What the kubelet has rotated goes with the log that it was.
func TestTidyLogs_deadEpochs_newestAreKept(t *testing.T) {
	_, r := newFake(t, "containerd")
	there := logs(t, r, "0.log", "0.log.20261122-080000", "0.log.20261122-075000.gz", "1.log", "1.log.20261122-080000", "2.log", "9.log", "10.log",
		"10.log.20261122-080000", "11.log", "other", "x.log")
	if err := r.TidyLogs([]sidecar.Container{proxyOf("a", 11, sidecar.Running), proxyOf("b", 1, sidecar.Running)}); err != nil {
		t.Fatal(err)
	}
	want := []string{"1.log", "1.log.20261122-080000", "10.log", "10.log.20261122-080000", "11.log", "9.log", "other", "x.log"}
	if diff := cmp.Diff(want, there()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A name from a container's label leads to no other directory.
func TestTidyLogs_directoryElsewhere_isLeftAlone(t *testing.T) {
	_, r := newFake(t, "containerd")
	outside := filepath.Join(filepath.Dir(r.logRoot), "x_y_z", sidecar.ContainerName)
	if err := os.MkdirAll(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"0.log", "1.log", "2.log"} {
		if err := os.WriteFile(filepath.Join(outside, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := sidecar.Container{ID: "a", Epoch: 9, State: sidecar.Running, Labels: sidecar.Labels{PodNamespace: "../x", PodName: "y", PodUID: "z"}}
	if err := r.TidyLogs([]sidecar.Container{c}); err == nil {
		t.Error("no error")
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 3 {
		t.Errorf("%v, error %v", entries, err)
	}
}

func TestExec_command_returnsOutput(t *testing.T) {
	f, r := newFake(t, "containerd")
	f.states["c0"] = criv1.ContainerState_CONTAINER_RUNNING
	got, err := r.Exec(t.Context(), "c0", []string{"ls", "/"}, 1500*time.Millisecond)
	if err != nil || string(got.Out) != "ls" || string(got.Err) != "e" || got.Code != 2 {
		t.Errorf("%+v, error %v", got, err)
	}
	if _, err := r.Exec(t.Context(), "c1", []string{"ls"}, time.Second); !errors.Is(err, sidecar.ErrGone) {
		t.Errorf("in none: error %v", err)
	}
}
