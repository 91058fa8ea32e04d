package cri

import (
	"testing"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestFirstStart_containersOfTheSandbox_givesTheEarliestThatCounts(t *testing.T) {
	container := func(id, name, sandbox string, state criv1.ContainerState) *criv1.Container {
		return &criv1.Container{Id: id, PodSandboxId: sandbox, State: state, Labels: map[string]string{labelContainerName: name}}
	}
	const created, running, exited = criv1.ContainerState_CONTAINER_CREATED, criv1.ContainerState_CONTAINER_RUNNING, criv1.ContainerState_CONTAINER_EXITED
	r := &fakeRuntime{ignoresFilter: true, containers: []*criv1.Container{
		container("1", "app", "box", running), container("2", "app", "box", exited), container("3", "istio-proxy", "box", running),
		container("4", "app", "another", running), container("5", "", "box", running), container("6", "app", "box", created),
		container("7", "app", "box", running), // removed by now
		container("8", "app", "box", exited),
	}, started: map[string]int64{"1": 700, "2": 500, "3": 100, "4": 100, "5": 100, "6": 100, "8": 0}}
	f := newFinder(t, serve(t, r))
	apps := func(name string) bool { return name == "app" }
	if at, err := f.FirstStart(t.Context(), "box", apps); err != nil || at.UnixNano() != 500 {
		t.Errorf("%v, error %v", at, err)
	}
	for _, sandbox := range []string{"none", ""} {
		if at, err := f.FirstStart(t.Context(), sandbox, apps); err != nil || at != (time.Time{}) {
			t.Errorf("sandbox %q: %v, error %v", sandbox, at, err)
		}
	}
}
