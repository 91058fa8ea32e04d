package container

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

func (f *fakeCRI) ReopenContainerLog(_ context.Context, r *criv1.ReopenContainerLogRequest) (*criv1.ReopenContainerLogResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reopened = append(f.reopened, r.GetContainerId())
	return &criv1.ReopenContainerLogResponse{}, f.errors["reopen"]
}

func (f *fakeCRI) ExecSync(_ context.Context, r *criv1.ExecSyncRequest) (*criv1.ExecSyncResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.states[r.GetContainerId()]; !ok {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	return &criv1.ExecSyncResponse{Stdout: []byte(r.GetCmd()[0]), Stderr: []byte("e"), ExitCode: int32(r.GetTimeout())}, nil //nolint:gosec // seconds
}

// proxyOf is a proxy of the pod shop/cart.
func proxyOf(id string, epoch uint32, state sidecar.State) sidecar.Container {
	return sidecar.Container{ID: id, Epoch: epoch, State: state, Labels: sidecar.Labels{PodNamespace: "shop", PodName: "cart", PodUID: "u1"}}
}

// logs makes logs of a size each, and returns a function that lists what there is.
func logs(t *testing.T, r *Runtime, sizes map[string]int64) (there func() map[string]int64) {
	t.Helper()
	dir := filepath.Join(r.logRoot, "shop_cart_u1", ContainerName)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, size := range sizes {
		if err := errors.Join(os.WriteFile(filepath.Join(dir, name), nil, 0o600), os.Truncate(filepath.Join(dir, name), size)); err != nil {
			t.Fatal(err)
		}
	}
	return func() map[string]int64 {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]int64{}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				t.Fatal(err)
			}
			out[e.Name()] = info.Size()
		}
		return out
	}
}

func TestALargeLogIsRotated(t *testing.T) {
	f, r := newFake(t, "containerd")
	there := logs(t, r, map[string]int64{"3.log": maxLogBytes, "3.log.1": 7, "4.log": maxLogBytes - 1, "5.log": maxLogBytes})
	err := r.TidyLogs(t.Context(), []sidecar.Container{
		proxyOf("a", 3, sidecar.Running), proxyOf("b", 4, sidecar.Running), proxyOf("c", 5, sidecar.Exited), proxyOf("without a log", 6, sidecar.Running),
	})
	if err != nil || !slices.Equal(f.reopened, []string{"a"}) {
		t.Errorf("opened again: %q, error %v", f.reopened, err)
	}
	if got := there(); len(got) != 3 || got["3.log.1"] != maxLogBytes || got["5.log"] != maxLogBytes {
		t.Errorf("there is %v", got)
	}
}

// The runtime goes on writing to the file that it has open: it keeps its name.
func TestALogThatIsNotOpenedAgainKeepsItsName(t *testing.T) {
	f, r := newFake(t, "containerd")
	f.errors["reopen"] = status.Error(codes.Unavailable, "away")
	there := logs(t, r, map[string]int64{"3.log": maxLogBytes})
	if err := r.TidyLogs(t.Context(), []sidecar.Container{proxyOf("a", 3, sidecar.Running)}); err == nil {
		t.Error("no error")
	}
	if got := there(); len(got) != 1 || got["3.log"] != maxLogBytes {
		t.Errorf("there is %v", got)
	}
}

func TestLogsOfProxiesThatEndedLongAgoAreRemoved(t *testing.T) {
	_, r := newFake(t, "containerd")
	there := logs(t, r, map[string]int64{"0.log": 1, "0.log.1": 1, "1.log": 1, "2.log": 1, "9.log": 1, "10.log": 1, "10.log.1": 1, "11.log": 1, "other": 1})
	if err := r.TidyLogs(t.Context(), []sidecar.Container{proxyOf("a", 11, sidecar.Running), proxyOf("b", 1, sidecar.Running)}); err != nil {
		t.Fatal(err)
	}
	got := there()
	want := []string{"1.log", "9.log", "10.log", "10.log.1", "11.log", "other"}
	for _, name := range want {
		if _, ok := got[name]; !ok {
			t.Errorf("%s is gone", name)
		}
	}
	if len(got) != len(want) {
		t.Errorf("there is %v", got)
	}
}

// A name from a container's label leads to no other directory.
func TestLogsElsewhereAreLeftAlone(t *testing.T) {
	f, r := newFake(t, "containerd")
	outside := filepath.Join(filepath.Dir(r.logRoot), "x_y_z", ContainerName)
	if err := os.MkdirAll(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(outside, "0.log")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, maxLogBytes)); err != nil {
		t.Fatal(err)
	}
	c := sidecar.Container{ID: "a", State: sidecar.Running, Labels: sidecar.Labels{PodNamespace: "../x", PodName: "y", PodUID: "z"}}
	if err := r.TidyLogs(t.Context(), []sidecar.Container{c}); err == nil || len(f.reopened) != 0 {
		t.Errorf("opened again: %q, error %v", f.reopened, err)
	}
	if _, err := os.Lstat(file); err != nil {
		t.Error(err)
	}
}

func TestACommandInAProxy(t *testing.T) {
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
