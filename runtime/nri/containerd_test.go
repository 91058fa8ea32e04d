package nri

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/podnet"
)

// refusals is how often a pod is refused before it may start.
const refusals = 20

// A pod is refused by a real containerd at our request, then starts. The runtime comes up again after a restart, with the pod running.
// `hack/test.sh runtimes` runs it with releases that keep the record of a refused sandbox, and with releases that do not.
func TestContainerdStartsAfterRefusals(t *testing.T) {
	releases := filepath.SplitList(os.Getenv("CONTAINERDS"))
	if len(releases) == 0 {
		t.Skip("CONTAINERDS lists no directories with containerd: hack/test.sh runtimes")
	}
	for _, programs := range releases {
		t.Run(containerdVersion(t, programs), func(t *testing.T) {
			h := &fakeHandler{asks: true}
			d := startContainerd(t, programs)
			e := start(t, Config{
				Socket: d.path("nri.sock"), Handler: h,
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
			d.restart(t)
			d.wantRunning(t, pod)
			within(t, "connected again", e.Connected)
			d.remove(t, pod)
		})
	}
}

// A plugin that refuses the sandbox itself, as ours does not, is the control: the release with the fault does not come up again, and the
// cluster's, which is the first, does. What others do is not looked at.
func TestContainerdRefusedSandboxes_onlyReleaseWithFault_doesNotStart(t *testing.T) {
	for i, programs := range filepath.SplitList(os.Getenv("CONTAINERDS")) {
		version := containerdVersion(t, programs)
		fault := strings.Contains(version, "2.2.5")
		if i > 0 && !fault {
			continue
		}
		t.Run(version, func(t *testing.T) {
			d := startContainerd(t, programs)
			refuseSandboxes(t, d)
			d.end()
			err := d.tryStart(t)
			if fault && (err == nil || !strings.Contains(err.Error(), "failed to reserve sandbox name")) {
				t.Errorf("got %v; want the fault", err)
			}
			if !fault && err != nil {
				t.Error(err)
			}
		})
	}
}

// refuseSandboxes has a plugin refuse a pod's sandboxes, and lets the last one start.
func refuseSandboxes(t *testing.T, d *containerd) {
	t.Helper()
	plugin := refuser{}
	plugin.refuses.Store(true)
	st, err := stub.New(&plugin, stub.WithSocketPath(d.path("nri.sock")), stub.WithPluginName("refuser"), stub.WithPluginIdx("90"),
		stub.WithOnClose(func() {}))
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Stop)
	var pod containerdPod
	for range refusals {
		if err := d.startPod(t, &pod); err == nil || !strings.Contains(err.Error(), errRefused.Error()) {
			t.Fatalf("the sandbox is not refused: %v", err)
		}
		d.removeListed(t)
	}
	plugin.refuses.Store(false)
	if err := d.startPod(t, &pod); err != nil {
		t.Fatalf("the pod does not start: %v", err)
	}
}

// removeListed removes all sandboxes, as the kubelet does with those that are not ready. On a busy machine the runtime fails to remove one
// that it has refused, and lists it. What the fault leaves is not listed.
func (d *containerd) removeListed(t *testing.T) {
	t.Helper()
	sandboxes, err := d.runtime.ListPodSandbox(t.Context(), &criv1.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sandboxes.Items {
		d.remove(t, containerdPod{sandbox: s.Id})
	}
}

var errRefused = errors.New("no sandbox today")

// refuser refuses sandboxes.
type refuser struct{ refuses atomic.Bool }

func (r *refuser) RunPodSandbox(context.Context, *api.PodSandbox) error {
	if r.refuses.Load() {
		return errRefused
	}
	return nil
}

// containerdPod is a pod that is being started. Its fields are empty until the runtime has made what they name.
type containerdPod struct{ sandbox, container string }

// startPod tries to start a pod once, as the kubelet does: a sandbox that was made is kept, a refused one is made anew under the same name.
func (d *containerd) startPod(t *testing.T, pod *containerdPod) error {
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
		made, err := d.runtime.RunPodSandbox(t.Context(), &criv1.RunPodSandboxRequest{Config: config})
		if err != nil {
			return err
		}
		pod.sandbox = made.PodSandboxId
	}
	made, err := d.runtime.CreateContainer(t.Context(), &criv1.CreateContainerRequest{
		PodSandboxId: pod.sandbox, SandboxConfig: config, Config: &criv1.ContainerConfig{
			Metadata: &criv1.ContainerMetadata{Name: "app"}, Image: &criv1.ImageSpec{Image: pauseImage},
			Linux: &criv1.LinuxContainerConfig{SecurityContext: &criv1.LinuxContainerSecurityContext{NamespaceOptions: network}},
		},
	})
	if err != nil {
		return err
	}
	pod.container = made.ContainerId
	_, err = d.runtime.StartContainer(t.Context(), &criv1.StartContainerRequest{ContainerId: pod.container})
	return err
}

func (d *containerd) wantRunning(t *testing.T, pod containerdPod) {
	t.Helper()
	sandboxes, err := d.runtime.ListPodSandbox(t.Context(), &criv1.ListPodSandboxRequest{})
	if err != nil || len(sandboxes.Items) != 1 || sandboxes.Items[0].Id != pod.sandbox {
		t.Errorf("sandboxes %v, error %v; want %s", sandboxes, err, pod.sandbox)
	}
	got, err := d.runtime.ContainerStatus(t.Context(), &criv1.ContainerStatusRequest{ContainerId: pod.container})
	if err != nil || got.Status.State != criv1.ContainerState_CONTAINER_RUNNING {
		t.Errorf("container %v, error %v", got.GetStatus().GetState(), err)
	}
}

func (d *containerd) remove(t *testing.T, pod containerdPod) {
	t.Helper()
	_, stopErr := d.runtime.StopPodSandbox(t.Context(), &criv1.StopPodSandboxRequest{PodSandboxId: pod.sandbox})
	_, removeErr := d.runtime.RemovePodSandbox(t.Context(), &criv1.RemovePodSandboxRequest{PodSandboxId: pod.sandbox})
	if err := errors.Join(stopErr, removeErr); err != nil {
		t.Error(err)
	}
}
