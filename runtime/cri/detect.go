package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// detectTimeout bounds one attempt at a socket: an idle runtime answers in milliseconds. While a runtime starts, the caller tries again.
const detectTimeout = 2 * time.Second

// DefaultEndpoints are the sockets for Detect, in this order: containerd, CRI-O, then the containerd of k3s and RKE2, of k0s and of
// MicroK8s. cri-dockerd is left out: its status names no namespace.
//
// A node with Docker Engine also runs a containerd, usually with CRI off. If CRI is on, detection cannot know that the kubelet does not
// use it; then the runtime must be named.
func DefaultEndpoints() []string {
	return []string{
		"unix:///run/containerd/containerd.sock",
		"unix:///var/run/crio/crio.sock",
		"unix:///run/k3s/containerd/containerd.sock",
		"unix:///run/k0s/containerd.sock",
		"unix:///var/snap/microk8s/common/run/containerd.sock",
	}
}

// Detect returns the first endpoint that answers CRI's Version. The error names every endpoint and what was wrong with it.
func Detect(ctx context.Context, endpoints []string) (string, error) {
	return detect(ctx, endpoints, detectTimeout)
}

func detect(ctx context.Context, endpoints []string, timeout time.Duration) (string, error) {
	failed := errors.New("no container runtime answered CRI")
	for _, endpoint := range endpoints {
		if err := ctx.Err(); err != nil {
			return "", fmt.Errorf("%w; %s: %w", failed, endpoint, err)
		}
		err := probe(ctx, endpoint, timeout)
		if err == nil {
			return endpoint, nil
		}
		failed = fmt.Errorf("%w; %s: %w", failed, endpoint, err)
	}
	return "", failed
}

// probe looks at the file first: "no such file" is clearer than the transport's error.
func probe(ctx context.Context, endpoint string, timeout time.Duration) error {
	path, err := socketPath(endpoint)
	if err != nil {
		return err
	}
	switch info, err := os.Stat(path); {
	case err != nil:
		return err
	case info.Mode().Type() != os.ModeSocket:
		return errors.New("not a socket")
	}
	f, err := New(endpoint)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err = f.Version(ctx)
	return errors.Join(err, f.Close())
}

const (
	// maxAnswerBytes bounds one answer. It is twice gRPC's default: a pod may have 256 KiB of annotations, the verbose status repeats them
	// twice, and JSON may need six bytes for one.
	maxAnswerBytes = 8 << 20
	// maxReconnectDelay: gRPC's default of two minutes would be too long after a restart of the runtime.
	maxReconnectDelay = 2 * time.Second
	connectTimeout    = 5 * time.Second
)

// socketPath parses an endpoint as the kubelet parses --container-runtime-endpoint on Linux.
func socketPath(endpoint string) (string, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("runtime endpoint %q: want unix:///path/to/socket or /path/to/socket", endpoint)
	}
	return path, nil
}

// dial returns a connection that the first call establishes. The path does not go through gRPC's URL parser, which refuses some
// characters. "localhost" is an authority that every runtime's HTTP/2 server accepts.
func dial(path string) (*grpc.ClientConn, error) {
	retry := backoff.DefaultConfig
	retry.BaseDelay = 100 * time.Millisecond
	retry.MaxDelay = maxReconnectDelay
	return grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: connectTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)),
	)
}
