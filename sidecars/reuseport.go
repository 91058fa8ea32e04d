package sidecars

import (
	"context"
	"errors"

	"istio-pod-network-controller/internal/sidecar"
)

// shareListeners readies a sandbox for a proxy that listens beside the one that it takes over from (nil: there is none). The error says why
// it cannot. A kernel that cannot move connections is no reason not to start: the ManagedProxy says so.
func (s stepping) shareListeners(ctx context.Context, from *sidecar.Container) error {
	switch {
	case from != nil && from.HotRestart != nil:
		return errors.New("the running proxy stays: an Envoy with hot restart cannot be told by a signal to close its listeners; make the pod anew")
	case from != nil && from.StopSignal == "":
		return errReplace
	}
	s.memory.unmoved = ""
	if err := s.Queues.Move(ctx, s.sandbox); err != nil {
		s.memory.unmoved = "an upgrade may reset connections that the old proxy has not accepted yet: " + err.Error()
	}
	return nil
}
