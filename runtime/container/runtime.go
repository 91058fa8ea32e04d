// Package container runs containers in the sandboxes of pods, outside their specs, over the Container Runtime Interface of containerd and
// CRI-O.
//
// The protocol is https://github.com/kubernetes/cri-api/blob/v0.37.2/pkg/apis/runtime/v1/api.proto.
package container

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
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
	images

	runtime criv1.RuntimeServiceClient
	// logRoot is where the kubelet keeps the logs of pods.
	logRoot string
	// createTimeout bounds the making and the start of one container.
	createTimeout time.Duration
}

// createTimeout is the default: a CRI-O that still makes the container of an earlier call holds up the next one until then. A shorter one would have
// a busy node, where CRI-O takes ten seconds, make containers in vain.
const createTimeout = 20 * time.Second

// DefaultLogRoot is the kubelet's directory for logs of pods.
const DefaultLogRoot = "/var/log/pods"

// New returns a Runtime over a connection to the runtime.
func New(conn grpc.ClientConnInterface, logRoot string) *Runtime {
	return &Runtime{runtime: criv1.NewRuntimeServiceClient(conn), images: images{criv1.NewImageServiceClient(conn)}, logRoot: logRoot, createTimeout: createTimeout}
}

// Create makes a container and starts it. A container that it has made and cannot start is removed again. If another container has the
// same pod and epoch, the error says so, and that container is left alone.
func (r *Runtime) Create(ctx context.Context, spec sidecar.Spec) (id string, err error) {
	sandbox, err := sandboxConfig(ctx, r.runtime, r.logRoot, spec)
	if err != nil {
		return "", err
	}
	config := containerConfig(spec, sandbox)
	if err := makeLogDirectory(r.logRoot, sandbox, config); err != nil {
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

// start makes a container and starts it. With an error, id names a container that was made and cannot be started, or is empty. Once begun it
// does not end with ctx: the runtime would go on, and keep the container's name.
func (r *Runtime) start(ctx context.Context, sandbox string, config *criv1.ContainerConfig, of *criv1.PodSandboxConfig) (id string, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.createTimeout)
	defer cancel()
	if id, err = r.create(ctx, sandbox, config, of); err != nil {
		return "", err
	}
	if _, err := r.runtime.StartContainer(ctx, &criv1.StartContainerRequest{ContainerId: id}); err != nil {
		return id, fmt.Errorf("start container %s: %w", id, err)
	}
	return id, nil
}

// create makes a container. CRI-O takes a second call with the same name and attempt for a repetition, and returns the container of the first
// one, which may be another agent's. Each call therefore has a label of its own, which is read back.
func (r *Runtime) create(ctx context.Context, sandbox string, config *criv1.ContainerConfig, of *criv1.PodSandboxConfig) (id string, err error) {
	call := rand.Text()
	config.Labels[labelCall] = call
	made, err := r.runtime.CreateContainer(ctx, &criv1.CreateContainerRequest{PodSandboxId: sandbox, Config: config, SandboxConfig: of})
	if err != nil {
		err = fmt.Errorf("create container in sandbox %s: %w", sandbox, err)
		if ready, errReady := r.Ready(ctx, sandbox); notFound(err) && errReady == nil && !ready { // not the image, or what it consists of
			err = gone(err)
		}
		return "", err
	}
	id = made.GetContainerId()
	resp, err := r.runtime.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: id})
	switch {
	case err != nil:
		return "", fmt.Errorf("read status of new container %s: %w", id, err)
	case resp.GetStatus().GetLabels()[labelCall] != call:
		return "", fmt.Errorf("another call has made container %s with the name %s and the attempt %d", id, config.GetMetadata().GetName(), config.GetMetadata().GetAttempt())
	}
	return id, nil
}

// Stop sends a container its stop signal, and ends it if it still runs after wait. A container that has ended is no error.
func (r *Runtime) Stop(ctx context.Context, id string, wait time.Duration) error {
	seconds := int64((wait + time.Second - 1) / time.Second)
	_, err := r.runtime.StopContainer(ctx, &criv1.StopContainerRequest{ContainerId: id, Timeout: seconds})
	if err != nil && !notFound(err) {
		return fmt.Errorf("stop container %s: %w", id, err)
	}
	return nil
}

// Remove removes a container, and ends it first if it runs. A missing container is no error. A container that was not started ignores its stop signal,
// and CRI-O waits for it until ctx ends, so it is killed.
func (r *Runtime) Remove(ctx context.Context, id string) error {
	resp, err := r.runtime.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: id})
	if err == nil && resp.GetStatus().GetState() == criv1.ContainerState_CONTAINER_CREATED {
		if err := r.Stop(ctx, id, 0); err != nil {
			return err
		}
	}
	_, err = r.runtime.RemoveContainer(ctx, &criv1.RemoveContainerRequest{ContainerId: id})
	if err != nil && !notFound(err) {
		return fmt.Errorf("remove container %s: %w", id, err)
	}
	return nil
}

// End returns how a container has ended. Runtimes and the kubelet remove containers that have ended within seconds: then the error is
// sidecar.ErrGone. It is sidecar.ErrNotEnded while the runtime does not know yet, which may be so after a list has shown the end.
func (r *Runtime) End(ctx context.Context, id string) (sidecar.End, error) {
	resp, err := r.runtime.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return sidecar.End{}, fmt.Errorf("read status of container %s: %w", id, gone(err))
	}
	s := resp.GetStatus()
	if s.GetState() != criv1.ContainerState_CONTAINER_EXITED || s.GetFinishedAt() <= 0 {
		return sidecar.End{}, fmt.Errorf("container %s: %w", id, sidecar.ErrNotEnded)
	}
	return sidecar.End{ExitCode: s.GetExitCode(), Reason: s.GetReason(), LogPath: s.GetLogPath()}, nil
}

// Addresses returns the addresses of a sandbox that runs, the first one first. Otherwise the error is sidecar.ErrGone. A sandbox in the node's
// network has none.
func (r *Runtime) Addresses(ctx context.Context, sandbox string) ([]string, error) {
	resp, err := r.runtime.PodSandboxStatus(ctx, &criv1.PodSandboxStatusRequest{PodSandboxId: sandbox})
	if err != nil {
		return nil, fmt.Errorf("read status of sandbox %s: %w", sandbox, gone(err))
	}
	if resp.GetStatus().GetState() != criv1.PodSandboxState_SANDBOX_READY {
		return nil, fmt.Errorf("sandbox %s does not run: %w", sandbox, sidecar.ErrGone)
	}
	network := resp.GetStatus().GetNetwork()
	var out []string
	for _, address := range append([]*criv1.PodIP{{Ip: network.GetIp()}}, network.GetAdditionalIps()...) {
		if address.GetIp() != "" {
			out = append(out, address.GetIp())
		}
	}
	return out, nil
}

// Owner returns which user and group of the node a container's are: other ones where its pod has a user namespace (hostUsers: false). Files for the
// container belong to these, since its mounts are not mapped: a tmpfs cannot be before Linux 6.3.
func (r *Runtime) Owner(ctx context.Context, spec sidecar.Spec) (uid, gid int64, err error) {
	sandbox, err := sandboxConfig(ctx, r.runtime, r.logRoot, spec)
	if err != nil {
		return 0, 0, err
	}
	users := sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if users == nil || users.GetMode() == criv1.NamespaceMode_NODE {
		return spec.UID, spec.GID, nil
	}
	if uid, err = onNode(users.GetUids(), spec.UID); err == nil {
		gid, err = onNode(users.GetGids(), spec.GID)
	}
	return uid, gid, err
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

// Signal sends a signal to a container's first process. It needs the node's process IDs (hostPID) and the capability KILL. It changes
// nothing in the runtime, so it may be called while the runtime waits for an answer over NRI. The error is sidecar.ErrGone if the container
// does not run.
func (r *Runtime) Signal(ctx context.Context, id string, signal unix.Signal) error {
	process, err := open(ctx, r.runtime, id)
	if err != nil {
		return err
	}
	defer process.close()
	return process.signal(signal)
}

// Wait returns nil when a container's first process has ended, which the runtime may say later. It uses no time of the processor meanwhile. The
// error is sidecar.ErrGone if the container does not run, as the runtime says.
func (r *Runtime) Wait(ctx context.Context, id string) error {
	process, err := open(ctx, r.runtime, id)
	if errors.Is(err, unix.ESRCH) { // the runtime names a process that the kernel no longer has
		return nil
	}
	if err != nil {
		return err
	}
	return process.wait(ctx)
}

// Output is what a command has printed, and its exit code.
type Output struct {
	Out, Err []byte
	Code     int32
}

// Exec runs a command in a container and waits for its end, for timeout at most. The runtime keeps up to 16 MiB of what it prints.
func (r *Runtime) Exec(ctx context.Context, id string, command []string, timeout time.Duration) (Output, error) {
	seconds := int64((timeout + time.Second - 1) / time.Second)
	resp, err := r.runtime.ExecSync(ctx, &criv1.ExecSyncRequest{ContainerId: id, Cmd: command, Timeout: seconds})
	if err != nil {
		return Output{}, fmt.Errorf("run command in container %s: %w", id, gone(err))
	}
	return Output{Out: resp.GetStdout(), Err: resp.GetStderr(), Code: resp.GetExitCode()}, nil
}

// ExecURL returns the address of the runtime's at which a command's input and output are streamed, as SPDY: the command starts when a client
// connects there, within a minute. With a terminal both outputs are one.
func (r *Runtime) ExecURL(ctx context.Context, id string, command []string, terminal bool) (string, error) {
	resp, err := r.runtime.Exec(ctx, &criv1.ExecRequest{
		ContainerId: id, Cmd: command, Tty: terminal, Stdin: true, Stdout: true, Stderr: !terminal,
	})
	if err != nil {
		return "", fmt.Errorf("run command in container %s: %w", id, gone(err))
	}
	return resp.GetUrl(), nil
}

// Output runs a short container and returns what it has printed, on either stream. The container is removed in any case, and so are
// leftovers of a killed agent in the same sandbox.
func (r *Runtime) Output(ctx context.Context, spec sidecar.Spec) (text string, err error) {
	sandbox, err := sandboxConfig(ctx, r.runtime, r.logRoot, spec)
	if err != nil {
		return "", err
	}
	if err := removeProbes(ctx, r, spec.Sandbox); err != nil {
		return "", err
	}
	config := probeConfig(spec, sandbox)
	if err := makeLogDirectory(r.logRoot, sandbox, config); err != nil {
		return "", err
	}
	log := filepath.Join(sandbox.GetLogDirectory(), config.GetLogPath())
	if err := os.RemoveAll(log); err != nil {
		return "", fmt.Errorf("remove an older log: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
		defer cancel()
		err = errors.Join(err, removeProbes(ctx, r, spec.Sandbox), os.RemoveAll(log))
	}()
	id, err := r.start(ctx, spec.Sandbox, config, sandbox)
	if err != nil {
		return "", err
	}
	end, err := awaitEnd(ctx, r.runtime, id)
	if err != nil {
		return "", err
	}
	text, err = readLog(log)
	if err == nil && end.GetExitCode() != 0 {
		err = fmt.Errorf("it ended with exit code %d (%s): %.200q", end.GetExitCode(), end.GetReason(), text)
	}
	return text, err
}

// removeProbes removes the containers that Output has made in a sandbox.
func removeProbes(ctx context.Context, r *Runtime, sandbox string) error {
	resp, err := r.runtime.ListContainers(ctx, &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{
		PodSandboxId: sandbox, LabelSelector: map[string]string{labelProbe: "true"},
	}})
	if err != nil {
		return fmt.Errorf("list containers of sandbox %s: %w", sandbox, err)
	}
	var wrong []error
	for _, c := range resp.GetContainers() {
		if c.GetLabels()[labelProbe] == "true" && c.GetPodSandboxId() == sandbox {
			wrong = append(wrong, r.Remove(ctx, c.GetId()))
		}
	}
	return errors.Join(wrong...)
}

func notFound(err error) bool { return status.Code(err) == codes.NotFound }

// gone adds sidecar.ErrGone to an error that says so in the runtime's way.
func gone(err error) error {
	if notFound(err) {
		return fmt.Errorf("%w: %w", sidecar.ErrGone, err)
	}
	return err
}
