package container

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

// CRI-O returns the first agent's container to a second agent that makes the same epoch. The second one neither starts nor removes it.
func TestCreate_otherAgentsContainer_isLeftAlone(t *testing.T) {
	for name, state := range map[string]criv1.ContainerState{
		"it runs":              criv1.ContainerState_CONTAINER_RUNNING,
		"it is not started":    criv1.ContainerState_CONTAINER_CREATED,
		"it has ended already": criv1.ContainerState_CONTAINER_EXITED,
	} {
		t.Run(name, func(t *testing.T) {
			f, r := newFake(t, "crio")
			f.crio = true
			id, err := r.Create(t.Context(), f.proxy())
			if err != nil {
				t.Fatal(err)
			}
			f.states[id] = state
			_, err = r.Create(t.Context(), f.proxy())
			if err == nil || !strings.Contains(err.Error(), "another call has made container "+id) || errors.Is(err, sidecar.ErrGone) {
				t.Errorf("error %v", err)
			}
			if got, there := f.states[id]; !there || got != state || len(f.removed) > 0 || len(f.stopped) > 0 {
				t.Errorf("it is %v (there: %t); removed %v, stopped %v", got, there, f.removed, f.stopped)
			}
		})
	}
}

// A program that is run for its answer starts no container of another agent either.
func TestOutput_otherAgentsContainer_isNotStarted(t *testing.T) {
	f, r := newFake(t, "crio")
	f.crio = true
	f.states["c2"], f.made["c2"] = criv1.ContainerState_CONTAINER_CREATED, &criv1.CreateContainerRequest{}
	if _, err := r.Output(t.Context(), f.proxy()); err == nil || !strings.Contains(err.Error(), "another call") {
		t.Errorf("error %v", err)
	}
	if f.states["c2"] != criv1.ContainerState_CONTAINER_CREATED {
		t.Errorf("it is %v", f.states["c2"])
	}
}

// A runtime that never answers holds up one call, not a worker for a whole step of half a minute. A busy one has the time to answer.
func TestCreate_runtimeHangs_endsBeforeTheStep(t *testing.T) {
	f, r := newFake(t, "crio")
	f.crio, f.making = true, make(chan struct{})
	r.createTimeout = 50 * time.Millisecond
	began := time.Now()
	_, err := r.Create(t.Context(), f.proxy())
	if took := time.Since(began); err == nil || took > 5*time.Second || errors.Is(err, sidecar.ErrGone) {
		t.Errorf("error %v after %s", err, took)
	}
	if len(f.states) > 0 || createTimeout >= 30*time.Second || createTimeout < 10*time.Second {
		t.Errorf("containers %v, limit %s", f.states, createTimeout)
	}
}

// CRI-O gives a container that was not started the whole time of the call to end by a signal that it ignores.
func TestRemove_containerNotStarted_isKilledFirst(t *testing.T) {
	for name, c := range map[string]struct {
		state criv1.ContainerState
		want  []int64 // the times to end that it got
	}{
		"it was not started": {criv1.ContainerState_CONTAINER_CREATED, []int64{0}},
		"it runs":            {criv1.ContainerState_CONTAINER_RUNNING, nil},
		"it has ended":       {criv1.ContainerState_CONTAINER_EXITED, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f, r := newFake(t, "crio")
			f.states["c1"] = c.state
			if err := r.Remove(t.Context(), "c1"); err != nil || len(f.states) > 0 {
				t.Errorf("error %v, left: %v", err, f.states)
			}
			if !slices.Equal(f.stopped, c.want) {
				t.Errorf("it got %v seconds to end, want %v", f.stopped, c.want)
			}
		})
	}
}

// "Not found" may be the image's. The sandbox is asked before the pod counts as gone.
func TestCreate_notFound_asksTheSandbox(t *testing.T) {
	for name, c := range map[string]struct {
		ends bool
		gone bool
	}{
		"the image is broken":       {ends: false, gone: false},
		"the sandbox ends just now": {ends: true, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			f, r := newFake(t, "containerd")
			f.errors["create"] = status.Error(codes.NotFound, "content digest sha256:1: not found")
			spec := f.proxy()
			if c.ends {
				f.endsAtCreate = true
			}
			_, err := r.Create(t.Context(), spec)
			if errors.Is(err, sidecar.ErrGone) != c.gone || !strings.Contains(err.Error(), "content digest") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// Right after a container's end the runtime may not know how it has ended: that is not exit code 0.
func TestEnd_notKnownYet_isNoExitCode(t *testing.T) {
	f, r := newFake(t, "crio")
	f.states["c0"], f.late = criv1.ContainerState_CONTAINER_EXITED, map[string]bool{"c0": true}
	if end, err := r.End(t.Context(), "c0"); !errors.Is(err, sidecar.ErrNotEnded) {
		t.Errorf("ended %+v, error %v", end, err)
	}
	f.late, f.states["c0"] = nil, criv1.ContainerState_CONTAINER_RUNNING
	if end, err := r.End(t.Context(), "c0"); !errors.Is(err, sidecar.ErrNotEnded) {
		t.Errorf("of a container that runs: %+v, error %v", end, err)
	}
}

// CRI-O's lists do not say which image was asked for.
func TestList_crio_knowsImageByLabel(t *testing.T) {
	f, r := newFake(t, "crio")
	f.crio = true
	if _, err := r.Create(t.Context(), f.proxy()); err != nil {
		t.Fatal(err)
	}
	all, err := r.List(t.Context(), "")
	if err != nil || !slices.ContainsFunc(all, func(c sidecar.Container) bool { return c.Image == f.proxy().Image }) {
		t.Errorf("listed %+v, error %v", all, err)
	}
}
