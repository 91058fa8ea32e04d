package container

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

// sharedCRI is a runtime with the pods of shared proxies. It ignores the filters, as a runtime with another idea of labels might.
type sharedCRI struct {
	criv1.RuntimeServiceClient
	sandboxes  []*criv1.PodSandbox
	containers []*criv1.Container
	err        error
}

func (f *sharedCRI) ListPodSandbox(context.Context, *criv1.ListPodSandboxRequest, ...grpc.CallOption) (*criv1.ListPodSandboxResponse, error) {
	return &criv1.ListPodSandboxResponse{Items: f.sandboxes}, f.err
}

func (f *sharedCRI) ListContainers(context.Context, *criv1.ListContainersRequest, ...grpc.CallOption) (*criv1.ListContainersResponse, error) {
	return &criv1.ListContainersResponse{Containers: f.containers}, f.err
}

func sharedSandbox(id, namespace, profile string, state criv1.PodSandboxState) *criv1.PodSandbox {
	return &criv1.PodSandbox{Id: id, State: state, Metadata: &criv1.PodSandboxMetadata{Namespace: namespace}, Labels: map[string]string{sidecar.LabelShared: profile}}
}

func sharedContainer(id, sandbox, name string, state criv1.ContainerState, created int64) *criv1.Container {
	return &criv1.Container{
		Id: id, PodSandboxId: sandbox, State: state, CreatedAt: created, Metadata: &criv1.ContainerMetadata{Name: name},
		Image: &criv1.ImageSpec{UserSpecifiedImage: "localhost/haproxy:1"}, Labels: map[string]string{labelPodUID: "uid-" + sandbox},
	}
}

func made(s *criv1.PodSandbox, at int64) *criv1.PodSandbox {
	return &criv1.PodSandbox{Id: s.GetId(), State: s.GetState(), Metadata: s.GetMetadata(), Labels: s.GetLabels(), CreatedAt: at}
}

// Only the agent's own namespace has shared proxies: a pod of another one that carries the label is none.
func TestShared_pods_oldestOfOwnNamespaceFirst(t *testing.T) {
	const ready, running = criv1.PodSandboxState_SANDBOX_READY, criv1.ContainerState_CONTAINER_RUNNING
	mine := sharedSandbox("s1", "mesh", "edge", ready)
	proxy := sharedContainer("c1", "s1", "proxy", running, 7)
	for name, c := range map[string]struct {
		sandboxes  []*criv1.PodSandbox
		containers []*criv1.Container
		want       string
	}{
		"it runs":                         {[]*criv1.PodSandbox{mine}, []*criv1.Container{proxy}, "c1"},
		"there is no pod":                 {nil, []*criv1.Container{proxy}, ""},
		"its pod is in another namespace": {[]*criv1.PodSandbox{sharedSandbox("s1", "shop", "edge", ready)}, []*criv1.Container{proxy}, ""},
		"its pod is of another profile":   {[]*criv1.PodSandbox{sharedSandbox("s1", "mesh", "other", ready)}, []*criv1.Container{proxy}, ""},
		"its sandbox has ended": {
			[]*criv1.PodSandbox{sharedSandbox("s1", "mesh", "edge", criv1.PodSandboxState_SANDBOX_NOTREADY)}, []*criv1.Container{proxy}, "",
		},
		"its container has ended": {
			[]*criv1.PodSandbox{mine}, []*criv1.Container{sharedContainer("c1", "s1", "proxy", criv1.ContainerState_CONTAINER_EXITED, 7)}, "",
		},
		"another container of its pod runs": {[]*criv1.PodSandbox{mine}, []*criv1.Container{sharedContainer("c1", "s1", "debug", running, 7)}, ""},
		"a newer pod replaces it": {
			[]*criv1.PodSandbox{made(sharedSandbox("s2", "mesh", "edge", ready), 5), made(mine, 3)},
			[]*criv1.Container{sharedContainer("c2", "s2", "proxy", running, 9), proxy},
			"c1 c2",
		},
		"a container of the older pod was started anew": {
			[]*criv1.PodSandbox{made(sharedSandbox("s2", "mesh", "edge", ready), 5), made(mine, 3)},
			[]*criv1.Container{sharedContainer("c2", "s2", "proxy", running, 9), sharedContainer("c3", "s1", "proxy", running, 11)},
			"c3 c2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Runtime{runtime: &sharedCRI{sandboxes: c.sandboxes, containers: c.containers}}
			got, err := r.Shared(t.Context(), "mesh", "edge")
			var ids []string
			for _, one := range got {
				ids = append(ids, one.ID)
				if one.Image != "localhost/haproxy:1" || one.Created.IsZero() || one.PodUID != "uid-"+one.Sandbox {
					t.Errorf("found %+v", one)
				}
			}
			if strings.Join(ids, " ") != c.want || errors.Is(err, sidecar.ErrGone) != (c.want == "") {
				t.Errorf("found %+v, error %v, want %q", got, err, c.want)
			}
		})
	}
	broken := errors.New("the runtime is busy")
	r := &Runtime{runtime: &sharedCRI{sandboxes: []*criv1.PodSandbox{mine}, err: broken}}
	if _, err := r.Shared(t.Context(), "mesh", "edge"); !errors.Is(err, broken) || errors.Is(err, sidecar.ErrGone) {
		t.Errorf("error %v: a proxy that could not be asked for must not pass for one that is gone", err)
	}
}
