package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
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
