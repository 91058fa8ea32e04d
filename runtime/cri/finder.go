// Package cri asks containerd or CRI-O, over the Container Runtime Interface, which sandbox a pod has and where its
// network namespace is.
//
// The protocol is https://github.com/kubernetes/cri-api/blob/v0.37.2/pkg/apis/runtime/v1/api.proto. It has no field for
// the namespace: both runtimes put it into the free-form part of the verbose status, see verboseInfo.
package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/podnet"
)

// labelPodUID is set by the kubelet on every sandbox; runtimes can select by labels only, not by the metadata's UID.
const labelPodUID = "io.kubernetes.pod.uid"

// Finder finds the sandbox of a pod:
//
//   - list the READY sandboxes that carry the pod's UID;
//   - take the newest: while the kubelet replaces a sandbox two may be listed;
//   - read its verbose status, and check that it is this pod's, still ready and not on the host's network;
//   - take the network namespace's path from the verbose part.
//
// A path through a process may lead to another pod once the process has ended: the caller asks again after it has opened the path.
//
// It is safe for concurrent use and connects at the first call. It reconnects to a runtime that restarts.
type Finder struct {
	conn    *grpc.ClientConn
	runtime criv1.RuntimeServiceClient
}

// New returns the Finder of a runtime's socket: "unix:///run/containerd/containerd.sock", or the path alone. The runtime need not run yet.
func New(endpoint string) (*Finder, error) {
	path, err := socketPath(endpoint)
	if err != nil {
		return nil, err
	}
	conn, err := dial(path)
	if err != nil {
		return nil, fmt.Errorf("set up CRI client for %s: %w", path, err)
	}
	return &Finder{conn: conn, runtime: criv1.NewRuntimeServiceClient(conn)}, nil
}

// Find returns pod with the ID, network namespace and runtime handler of its newest ready sandbox. It uses the pod's UID, and its name
// if there is one. Without such a sandbox the error is podnet.ErrNotReady: try again soon.
func (f *Finder) Find(ctx context.Context, pod podnet.Sandbox) (podnet.Sandbox, error) {
	if pod.UID == "" {
		return podnet.Sandbox{}, errors.New("the pod to find has no UID")
	}
	ready, err := f.runtime.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{Filter: &criv1.PodSandboxFilter{
		State:         &criv1.PodSandboxStateValue{State: criv1.PodSandboxState_SANDBOX_READY},
		LabelSelector: map[string]string{labelPodUID: pod.UID},
	}})
	if err != nil {
		return podnet.Sandbox{}, fmt.Errorf("list sandboxes: %w", err)
	}
	id := newest(ready.GetItems(), pod)
	if id == "" {
		return podnet.Sandbox{}, fmt.Errorf("list sandboxes of pod UID %s: %w", pod.UID, podnet.ErrNotReady)
	}
	return f.read(ctx, id, pod)
}

// read returns what the runtime says now of one sandbox.
func (f *Finder) read(ctx context.Context, id string, pod podnet.Sandbox) (podnet.Sandbox, error) {
	resp, err := f.runtime.PodSandboxStatus(ctx, &criv1.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	switch {
	case status.Code(err) == codes.NotFound: // removed since it was listed
		return podnet.Sandbox{}, fmt.Errorf("read status of sandbox %s: %w: %w", id, podnet.ErrNotReady, err)
	case err != nil:
		return podnet.Sandbox{}, fmt.Errorf("read status of sandbox %s: %w", id, err)
	}
	if err := check(resp.GetStatus(), id, pod); err != nil {
		return podnet.Sandbox{}, fmt.Errorf("sandbox %s: %w", id, err)
	}
	info, err := decodeInfo(resp.GetInfo())
	if err != nil {
		return podnet.Sandbox{}, fmt.Errorf("sandbox %s: %w", id, err)
	}
	netNS, err := info.netNS()
	if err != nil {
		return podnet.Sandbox{}, fmt.Errorf("sandbox %s: %w", id, err)
	}
	pod.ID, pod.NetNS, pod.RuntimeHandler = id, netNS, info.handler(resp.GetStatus())
	pod.Nameservers = strings.Join(info.Config.DNS.Servers, ",")
	pod.Attempt, pod.CreatedAt = resp.GetStatus().GetMetadata().GetAttempt(), resp.GetStatus().GetCreatedAt()
	return pod, nil
}

// Version returns the runtime's name and version, as in "containerd 2.4.2". An answer means that the runtime serves CRI.
func (f *Finder) Version(ctx context.Context) (string, error) {
	v, err := f.runtime.Version(ctx, &criv1.VersionRequest{})
	if err != nil {
		return "", fmt.Errorf("read runtime version: %w", err)
	}
	return v.GetRuntimeName() + " " + v.GetRuntimeVersion(), nil
}

// Close closes the connection. Calls that are under way fail.
func (f *Finder) Close() error { return f.conn.Close() }

// Connection returns the connection to the runtime, for other parts of its interface. It is closed by Close.
func (f *Finder) Connection() *grpc.ClientConn { return f.conn }
