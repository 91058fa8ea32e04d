// Package docker asks a Docker Engine which sandbox a pod has and where its network namespace is.
//
// The kubelet uses such a node through cri-dockerd, whose CRI status names no namespace
// (https://github.com/Mirantis/cri-dockerd/pull/119). The Engine itself names it
// (https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerInspect).
package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"istio-pod-network-controller/internal/podnet"
)

// DefaultEndpoint is the Engine's usual socket.
const DefaultEndpoint = "unix:///var/run/docker.sock"

// Finder finds the sandbox of a pod:
//
//   - agree on an API version, once;
//   - list the running containers whose labels say that they are a sandbox of the pod's UID;
//   - take the newest: while the kubelet replaces a sandbox two may be listed;
//   - inspect it, and check that it is this pod's, still running and not on the host's network;
//   - take the network namespace's path from the answer.
//
// A path through a process may lead to another pod once the process has ended: the caller asks again after it has opened the path.
//
// It is safe for concurrent use and connects at the first call.
type Finder struct {
	engine      *client.Client
	connections *http.Transport
	negotiated  atomic.Bool
}

// New returns the Finder of an Engine's socket: "unix:///var/run/docker.sock", or the path alone; empty means DefaultEndpoint. The Engine need not
// run yet.
func New(endpoint string) (*Finder, error) {
	endpoint = cmp.Or(endpoint, DefaultEndpoint)
	path := strings.TrimPrefix(endpoint, "unix://")
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("runtime endpoint %q: want unix:///path/to/socket or /path/to/socket", endpoint)
	}
	connections := newTransport(path)
	bounded := &http.Client{Transport: connections, CheckRedirect: client.CheckRedirect}
	engine, err := client.New(client.WithHost("unix://"+path), client.WithHTTPClient(bounded))
	if err != nil {
		return nil, fmt.Errorf("set up Docker client for %s: %w", path, err)
	}
	return &Finder{engine: engine, connections: connections.base}, nil
}

// Find returns pod with the ID, network namespace and runtime handler of its newest running sandbox. It uses the pod's UID, and its
// name if there is one. Without such a sandbox the error is podnet.ErrNotReady: try again soon.
func (f *Finder) Find(ctx context.Context, pod podnet.Sandbox) (podnet.Sandbox, error) {
	if pod.UID == "" {
		return podnet.Sandbox{}, errors.New("the pod to find has no UID")
	}
	if err := f.negotiate(ctx); err != nil {
		return podnet.Sandbox{}, err
	}
	filters := client.Filters{}.Add("label", labelPodUID+"="+pod.UID, labelType+"="+typeSandbox).Add("status", "running")
	running, err := f.engine.ContainerList(ctx, client.ContainerListOptions{Filters: filters})
	if err != nil {
		return podnet.Sandbox{}, fmt.Errorf("list sandboxes: %w", err)
	}
	id := newest(running.Items, pod)
	if id == "" {
		return podnet.Sandbox{}, fmt.Errorf("list sandboxes of pod UID %s: %w", pod.UID, podnet.ErrNotReady)
	}
	return f.inspect(ctx, id, pod)
}

// inspect returns what the Engine says now of one sandbox.
func (f *Finder) inspect(ctx context.Context, id string, pod podnet.Sandbox) (podnet.Sandbox, error) {
	answer, err := f.engine.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	switch {
	case errdefs.IsNotFound(err): // removed since it was listed
		return podnet.Sandbox{}, fmt.Errorf("inspect sandbox %s: %w: %w", id, podnet.ErrNotReady, err)
	case err != nil:
		return podnet.Sandbox{}, fmt.Errorf("inspect sandbox %s: %w", id, err)
	}
	if err := check(&answer.Container, id, pod); err != nil {
		return podnet.Sandbox{}, fmt.Errorf("sandbox %s: %w", id, err)
	}
	netNS, err := netNSOf(&answer.Container)
	if err != nil {
		return podnet.Sandbox{}, fmt.Errorf("sandbox %s: %w", id, err)
	}
	pod.ID, pod.NetNS, pod.RuntimeHandler = id, netNS, handlerOf(&answer.Container)
	pod.Attempt, pod.CreatedAt = attemptOf(answer.Container.Name), createdAt(&answer.Container)
	return pod, nil
}

// Version returns the Engine's version, as in "docker 20.10.24". An answer means that the Engine serves.
func (f *Finder) Version(ctx context.Context) (string, error) {
	if err := f.negotiate(ctx); err != nil {
		return "", err
	}
	v, err := f.engine.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return "", fmt.Errorf("read Engine version: %w", err)
	}
	return "docker " + v.Version, nil
}

// Close closes idle connections.
func (f *Finder) Close() error {
	f.connections.CloseIdleConnections()
	return f.engine.Close()
}

// negotiate does what the client would do by itself, and returns its error. The client ignores that error and then uses its newest
// version, which an old Engine refuses with a message that hides the reason.
func (f *Finder) negotiate(ctx context.Context) error {
	if f.negotiated.Load() {
		return nil
	}
	if _, err := f.engine.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return fmt.Errorf("agree on Docker API version: %w", err)
	}
	f.negotiated.Store(true)
	return nil
}

const (
	// maxAnswerBytes bounds one answer. A pod's annotations are labels here: 256 KiB, for which JSON may need six times as many
	// bytes.
	maxAnswerBytes = 8 << 20
	// maxPathBytes is PATH_MAX.
	maxPathBytes = 4096
)

// transport connects to the Engine's socket, and makes a too large answer an error, because the client reads answers whole.
type transport struct{ base *http.Transport }

func newTransport(path string) transport {
	return transport{base: &http.Transport{
		DisableCompression: true,
		MaxIdleConns:       2,
		IdleConnTimeout:    30 * time.Second,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
	}}
}

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = &boundBody{ReadCloser: resp.Body, left: maxAnswerBytes}
	return resp, nil
}

type boundBody struct {
	io.ReadCloser
	left int
}

// Read reads at most what is left and one byte more, which shows that an answer is too large.
func (b *boundBody) Read(p []byte) (int, error) {
	if len(p) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= n
	if b.left < 0 {
		return n, fmt.Errorf("the Engine's answer is larger than %d bytes", maxAnswerBytes)
	}
	return n, err
}
