package state

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/hack/cluster/internal/daemon"
)

func TestStateIsReadBackAsWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	want := &State{
		Nodes:   []Holder{{Process: daemon.Process{PID: 7, Started: 99}, Network: "net:[1]"}},
		Daemons: map[string]daemon.Process{"etcd": {PID: 8, Started: 100}},
		Sysctls: map[string]string{"kernel/panic": "1"}, Ready: true, Began: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	if err := want.Save(file); err != nil {
		t.Fatal(err)
	}
	got, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMissingRecordMeansNotUp(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "state.json")); !errors.Is(err, ErrNotUp) {
		t.Errorf("got %v", err)
	}
}

func TestLockIsHeldOnceAtATime(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dir", "lock")
	unlock, err := Lock(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(file); err == nil {
		t.Error("locked twice")
	}
	unlock()
	unlock, err = Lock(file)
	if err != nil {
		t.Fatalf("after unlock: %v", err)
	}
	unlock()
}
