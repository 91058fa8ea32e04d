package agent

import (
	"context"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/runtime/nri"
)

// stopped has the proxies of a pod finish with its application. The runtime waits for the answer.
func (e entrance) stopped(ctx context.Context, s podnet.Sandbox, c nri.Container) error {
	core, err := e.core.get()
	if err != nil || core.managed == nil {
		return nil //nolint:nilerr // the agent is starting: the proxy goes with the sandbox
	}
	ended := sidecar.Application{ID: c.ID, Name: c.Name, State: sidecar.Exited, ExitCode: c.ExitCode}
	return core.managed.manager.ContainerEnded(ctx, s, ended)
}
