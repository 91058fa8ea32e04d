package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/runtime/cri"
	"istio-pod-network-controller/runtime/docker"
)

// runtimeStartTimeout is how long the agent waits at its start for a container runtime that does not answer. A runtime that starts
// at the same time needs some seconds. After that the agent ends with an error, which its pod's status shows.
const runtimeStartTimeout = 30 * time.Second

// lastRuntimeWait bounds the wait between two tries: a runtime that is there must not wait for the agent.
const lastRuntimeWait = 4 * time.Second

// awaitFinder calls find until it succeeds, limit is over, or ctx ends. It returns find's last error.
func awaitFinder(ctx context.Context, limit time.Duration, find func(context.Context) (runtimeFinder, error)) (runtimeFinder, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for failures := 1; ; failures++ {
		finder, err := find(ctx)
		if err == nil {
			return finder, nil
		}
		if !jitter.Wait(ctx, min(jitter.Bound(failures), lastRuntimeWait)) {
			return nil, err
		}
		ctrl.Log.Info("container runtime not there yet", "reason", err.Error())
	}
}

// newFinder connects to the container runtime that the flags name. auto means the first CRI socket that answers, else Docker.
func newFinder(ctx context.Context, name, endpoint string) (runtimeFinder, error) {
	finder, err := chooseFinder(ctx, name, endpoint)
	if err != nil {
		return nil, err
	}
	version, err := finder.Version(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ask container runtime %s: %w", name, err), finder.Close())
	}
	ctrl.Log.Info("container runtime found", "runtime", version)
	return finder, nil
}

// OpenCRI connects to the container runtime that the flags name, for what only a runtime that serves CRI can do: run proxies.
func OpenCRI(ctx context.Context, name, endpoint string) (*cri.Finder, error) {
	finder, err := chooseFinder(ctx, name, endpoint)
	if err != nil {
		return nil, err
	}
	byCRI, ok := finder.(*cri.Finder)
	if !ok {
		return nil, errors.Join(errors.New("proxies are run only by container runtimes that serve CRI: containerd or CRI-O"), finder.Close())
	}
	return byCRI, nil
}

func chooseFinder(ctx context.Context, name, endpoint string) (runtimeFinder, error) {
	endpoints := []string{endpoint}
	switch {
	case name == "docker":
		return docker.New(endpoint)
	case endpoint != "":
	case name == "containerd":
		endpoints = []string{"unix:///run/containerd/containerd.sock"}
	case name == "crio":
		endpoints = []string{"unix:///var/run/crio/crio.sock"}
	default:
		endpoints = cri.DefaultEndpoints()
	}
	found, err := cri.Detect(ctx, endpoints)
	if err == nil {
		return cri.New(found)
	}
	if name != "auto" || endpoint != "" {
		return nil, fmt.Errorf("--runtime %s: %w", name, err)
	}
	engine, errDocker := docker.New("")
	if errDocker == nil {
		if _, errDocker = engine.Version(ctx); errDocker == nil {
			return engine, nil
		}
		errDocker = errors.Join(errDocker, engine.Close())
	}
	return nil, fmt.Errorf("--runtime auto: %w", errors.Join(err, errDocker))
}
