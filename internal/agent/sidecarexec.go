package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/runtime/container"
	"istio-pod-network-controller/runtime/cri"
)

// SidecarExec is a command to run in a proxy that the node's agent runs.
type SidecarExec struct {
	// Runtime and Endpoint are those of Options.
	Runtime, Endpoint string
	Namespace, Pod    string
	Command           []string
	Timeout           time.Duration
}

// Run runs the command, prints what it has printed once it has ended, and returns its exit code.
func (e SidecarExec) Run(ctx context.Context, out, errOut io.Writer) (code int, err error) {
	finder, err := chooseFinder(ctx, e.Runtime, e.Endpoint)
	if err != nil {
		return 0, err
	}
	defer finder.Close() //nolint:errcheck // the process ends
	byCRI, ok := finder.(*cri.Finder)
	if !ok {
		return 0, errors.New("proxies are run only by container runtimes that serve CRI: containerd or CRI-O")
	}
	return e.run(ctx, container.New(byCRI.Connection(), DefaultLogRoot), out, errOut)
}

func (e SidecarExec) run(ctx context.Context, runtime *container.Runtime, out, errOut io.Writer) (code int, err error) {
	all, err := runtime.List(ctx, "")
	if err != nil {
		return 0, err
	}
	id := e.newest(all)
	if id == "" {
		return 0, fmt.Errorf("no proxy of the pod %s/%s runs on this node: `kubectl get sidecars.pod-network-controller.istio.io -n %s %s -o wide` names the pod's node",
			e.Namespace, e.Pod, e.Namespace, e.Pod)
	}
	printed, err := runtime.Exec(ctx, id, e.Command, e.Timeout)
	if err != nil {
		return 0, err
	}
	_, errWrite := out.Write(printed.Out)
	_, errWriteErr := errOut.Write(printed.Err)
	return int(printed.Code), errors.Join(errWrite, errWriteErr)
}

// newest returns the container of the pod's newest proxy that runs, or "".
func (e SidecarExec) newest(all []sidecar.Container) (id string) {
	var epoch uint32
	for _, c := range all {
		if c.PodNamespace == e.Namespace && c.PodName == e.Pod && c.State == sidecar.Running && (id == "" || c.Epoch > epoch) {
			id, epoch = c.ID, c.Epoch
		}
	}
	return id
}
