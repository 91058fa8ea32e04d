package nri

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/test/realruntimes"
)

// refusals is how often a pod is refused before it may start.
const refusals = 20

// A pod is refused by a real containerd at our request, then starts. The runtime comes up again after a restart, with the pod running.
//
// `hack/test.sh runtimes` also runs it with 2.2.5, which does not come up after another way of refusing (containerd/containerd#13609,
// mended in 2.2.6 and 2.3.3).
func TestContainerdStartsAfterRefusals(t *testing.T) {
	realruntimes.Containerds(t, func(t *testing.T, programs string) {
		h := &fakeHandler{asks: true}
		d := containerd{realruntimes.StartContainerd(t, programs)}
		e := start(t, Config{
			Socket: d.Path("nri.sock"), Handler: h,
			// The pod needs no network, so it has the node's. Here the API server says otherwise, and the handler is asked.
			HostNetwork: func(context.Context, podnet.Sandbox) (bool, bool) { return false, true },
		})
		within(t, "connected", e.Connected)
		h.refuse(errors.New("no rules today"))
		var pod containerdPod
		for range refusals {
			if err := d.startPod(t, &pod); err == nil || !strings.Contains(err.Error(), "no rules today") {
				t.Fatalf("the pod is not refused: %v", err)
			}
		}
		h.refuse(nil)
		if err := d.startPod(t, &pod); err != nil {
			t.Fatalf("the pod does not start: %v", err)
		}
		d.Restart(t)
		d.wantRunning(t, pod)
		within(t, "connected again", e.Connected)
		d.remove(t, pod)
	})
}

// containerd is a real one.
type containerd struct{ *realruntimes.Runtime }

// containerdPod is a pod that is being started. Its fields are empty until the runtime has made what they name.
type containerdPod struct{ sandbox, container string }

// startPod tries to start a pod once, as the kubelet does: a sandbox that was made is kept, a refused one is made anew under the same name.
func (d containerd) startPod(t *testing.T, pod *containerdPod) error {
	t.Helper()
	network := &criv1.NamespaceOption{Network: criv1.NamespaceMode_NODE}
	config := &criv1.PodSandboxConfig{
		Metadata: &criv1.PodSandboxMetadata{Name: "cart", Namespace: "shop", Uid: "uid-1"},
		Linux: &criv1.LinuxPodSandboxConfig{
			CgroupParent:    "/" + os.Getenv("CGROUP"),
			SecurityContext: &criv1.LinuxSandboxSecurityContext{NamespaceOptions: network},
		},
	}
	if pod.sandbox == "" {
		made, err := d.RunPodSandbox(t.Context(), &criv1.RunPodSandboxRequest{Config: config})
		if err != nil {
			return err
		}
		pod.sandbox = made.PodSandboxId
	}
	made, err := d.CreateContainer(t.Context(), &criv1.CreateContainerRequest{
		PodSandboxId: pod.sandbox, SandboxConfig: config, Config: &criv1.ContainerConfig{
			Metadata: &criv1.ContainerMetadata{Name: "app"}, Image: &criv1.ImageSpec{Image: realruntimes.PauseImage},
			Linux: &criv1.LinuxContainerConfig{SecurityContext: &criv1.LinuxContainerSecurityContext{NamespaceOptions: network}},
		},
	})
	if err != nil {
		return err
	}
	pod.container = made.ContainerId
	_, err = d.StartContainer(t.Context(), &criv1.StartContainerRequest{ContainerId: pod.container})
	return err
}

func (d containerd) wantRunning(t *testing.T, pod containerdPod) {
	t.Helper()
	sandboxes, err := d.ListPodSandbox(t.Context(), &criv1.ListPodSandboxRequest{})
	if err != nil || len(sandboxes.Items) != 1 || sandboxes.Items[0].Id != pod.sandbox {
		t.Errorf("sandboxes %v, error %v; want %s", sandboxes, err, pod.sandbox)
	}
	got, err := d.ContainerStatus(t.Context(), &criv1.ContainerStatusRequest{ContainerId: pod.container})
	if err != nil || got.Status.State != criv1.ContainerState_CONTAINER_RUNNING {
		t.Errorf("container %v, error %v", got.GetStatus().GetState(), err)
	}
}

func (d containerd) remove(t *testing.T, pod containerdPod) {
	t.Helper()
	_, stopErr := d.StopPodSandbox(t.Context(), &criv1.StopPodSandboxRequest{PodSandboxId: pod.sandbox})
	_, removeErr := d.RemovePodSandbox(t.Context(), &criv1.RemovePodSandboxRequest{PodSandboxId: pod.sandbox})
	if err := errors.Join(stopErr, removeErr); err != nil {
		t.Error(err)
	}
}
