package container

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

// What is ours is no application: neither a proxy nor a probe.
func TestApplications_ourContainers_areLeftOut(t *testing.T) {
	f, r := newFake(t, "containerd")
	if _, err := r.Create(t.Context(), f.proxy()); err != nil {
		t.Fatal(err)
	}
	id := f.sandbox.GetStatus().GetId()
	add := func(name, sandbox string, state criv1.ContainerState, labels map[string]string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.states[name] = state
		f.made[name] = &criv1.CreateContainerRequest{PodSandboxId: sandbox, Config: &criv1.ContainerConfig{
			Metadata: &criv1.ContainerMetadata{Name: name, Attempt: 4}, Labels: labels,
		}}
	}
	add("app", id, criv1.ContainerState_CONTAINER_EXITED, nil)
	add("another", id, criv1.ContainerState_CONTAINER_RUNNING, nil)
	add("probe", id, criv1.ContainerState_CONTAINER_RUNNING, map[string]string{labelProbe: "true"})
	add("of another pod", "other", criv1.ContainerState_CONTAINER_RUNNING, nil)
	all, err := r.Applications(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]sidecar.Application{}
	for _, a := range all {
		got[a.ID] = a
	}
	want := map[string]sidecar.Application{
		"app":     {ID: "app", Name: "app", Attempt: 4, State: sidecar.Exited, ExitCode: 3},
		"another": {ID: "another", Name: "another", Attempt: 4, State: sidecar.Running},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
