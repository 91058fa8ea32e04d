// Package container runs containers in the sandboxes of pods, outside their specs, over the Container Runtime Interface of containerd and
// CRI-O.
//
// The protocol is https://github.com/kubernetes/cri-api/blob/v0.37.2/pkg/apis/runtime/v1/api.proto.
package container

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

// Runtime makes and ends the containers of proxies. The runtime itself remembers them: List finds all that carry our label, whichever
// agent has made them.
//
// It is safe for concurrent use. Calls that change a container must not be made while the runtime waits for an answer over NRI: it holds
// a lock that they need, until it drops the plugin.
type Runtime struct {
	runtime criv1.RuntimeServiceClient
	images  criv1.ImageServiceClient
	// logRoot is where the kubelet keeps the logs of pods.
	logRoot string
}

// DefaultLogRoot is the kubelet's directory for logs of pods.
const DefaultLogRoot = "/var/log/pods"

// New returns a Runtime over a connection to the runtime.
func New(conn grpc.ClientConnInterface, logRoot string) *Runtime {
	return &Runtime{runtime: criv1.NewRuntimeServiceClient(conn), images: criv1.NewImageServiceClient(conn), logRoot: logRoot}
}

// List returns the containers of a pod's proxies, in any state, or of all proxies on the node if podUID is empty.
func (r *Runtime) List(ctx context.Context, podUID string) ([]sidecar.Container, error) {
	selector := map[string]string{labelSidecar: "true"}
	if podUID != "" {
		selector[labelPodUID] = podUID
	}
	resp, err := r.runtime.ListContainers(ctx, &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{LabelSelector: selector}})
	if err != nil {
		return nil, fmt.Errorf("list the containers of proxies: %w", err)
	}
	out := make([]sidecar.Container, 0, len(resp.GetContainers()))
	for _, c := range resp.GetContainers() {
		if l := c.GetLabels(); l[labelSidecar] == "true" && (podUID == "" || l[labelPodUID] == podUID) {
			out = append(out, containerOf(c))
		}
	}
	return out, nil
}

func containerOf(c *criv1.Container) sidecar.Container {
	out := sidecar.Container{
		ID: c.GetId(), Sandbox: c.GetPodSandboxId(), Labels: labelsOf(c.GetLabels()), Epoch: c.GetMetadata().GetAttempt(),
		State: sidecar.Exited, Image: c.GetImage().GetUserSpecifiedImage(), Created: time.Unix(0, c.GetCreatedAt()),
	}
	switch c.GetState() {
	case criv1.ContainerState_CONTAINER_CREATED:
		out.State = sidecar.Created
	case criv1.ContainerState_CONTAINER_RUNNING:
		out.State = sidecar.Running
	case criv1.ContainerState_CONTAINER_EXITED, criv1.ContainerState_CONTAINER_UNKNOWN:
	}
	return out
}

// Create makes a container and starts it. A container that was made and cannot be started is removed again. If another container has the
// same pod and epoch, the runtime returns an error.
func (r *Runtime) Create(ctx context.Context, spec sidecar.Spec) (id string, err error) {
	sandbox, err := r.sandboxConfig(ctx, spec)
	if err != nil {
		return "", err
	}
	config := containerConfig(spec, sandbox)
	if err := r.makeLogDirectory(sandbox, config); err != nil {
		return "", err
	}
	id, err = r.start(ctx, spec.Sandbox, config, sandbox)
	if err != nil && id != "" {
		err = errors.Join(err, r.Remove(ctx, id))
	}
	if err != nil {
		return "", err
	}
	return id, nil
}

// start makes a container and starts it. With an error, id is that of a container that was made and cannot be started, or empty.
func (r *Runtime) start(ctx context.Context, sandbox string, config *criv1.ContainerConfig, of *criv1.PodSandboxConfig) (id string, err error) {
	made, err := r.runtime.CreateContainer(ctx, &criv1.CreateContainerRequest{PodSandboxId: sandbox, Config: config, SandboxConfig: of})
	if err != nil {
		return "", fmt.Errorf("create container in sandbox %s: %w", sandbox, gone(err))
	}
	id = made.GetContainerId()
	if _, err := r.runtime.StartContainer(ctx, &criv1.StartContainerRequest{ContainerId: id}); err != nil {
		return id, fmt.Errorf("start container %s: %w", id, err)
	}
	return id, nil
}

// Stop sends a container its stop signal, and ends it if it still runs after wait. One that does not run is no error.
func (r *Runtime) Stop(ctx context.Context, id string, wait time.Duration) error {
	seconds := int64((wait + time.Second - 1) / time.Second)
	_, err := r.runtime.StopContainer(ctx, &criv1.StopContainerRequest{ContainerId: id, Timeout: seconds})
	if err != nil && !notFound(err) {
		return fmt.Errorf("stop container %s: %w", id, err)
	}
	return nil
}

// Remove removes a container, and ends it first if it runs. One that is not there is no error.
func (r *Runtime) Remove(ctx context.Context, id string) error {
	_, err := r.runtime.RemoveContainer(ctx, &criv1.RemoveContainerRequest{ContainerId: id})
	if err != nil && !notFound(err) {
		return fmt.Errorf("remove container %s: %w", id, err)
	}
	return nil
}

// End returns how a container has ended. Runtimes and the kubelet remove containers that have ended within seconds: then the error is
// sidecar.ErrGone.
func (r *Runtime) End(ctx context.Context, id string) (sidecar.End, error) {
	resp, err := r.runtime.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return sidecar.End{}, fmt.Errorf("read status of container %s: %w", id, gone(err))
	}
	s := resp.GetStatus()
	return sidecar.End{ExitCode: s.GetExitCode(), Reason: s.GetReason(), At: time.Unix(0, s.GetFinishedAt()), LogPath: s.GetLogPath()}, nil
}

// Ready reports whether a sandbox runs.
func (r *Runtime) Ready(ctx context.Context, sandbox string) (bool, error) {
	resp, err := r.runtime.PodSandboxStatus(ctx, &criv1.PodSandboxStatusRequest{PodSandboxId: sandbox})
	if notFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read status of sandbox %s: %w", sandbox, err)
	}
	return resp.GetStatus().GetState() == criv1.PodSandboxState_SANDBOX_READY, nil
}

func notFound(err error) bool { return status.Code(err) == codes.NotFound }

// gone adds sidecar.ErrGone to an error that says so in the runtime's way.
func gone(err error) error {
	if notFound(err) {
		return fmt.Errorf("%w: %w", sidecar.ErrGone, err)
	}
	return err
}
