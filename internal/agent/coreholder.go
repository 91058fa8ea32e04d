package agent

import (
	"context"
	"errors"
	"sync/atomic"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/podnet"
)

// core is what the entrances need of the core.
type core struct {
	programmer *controllers.Programmer
	pods       controllers.Reader
	managed    *proxies // nil without --sidecars
}

// coreHolder passes the core to the entrances. It is empty until the agent has read its pods. An agent that serves NRI and CNI before
// that, since no other one of the node does, refuses pods until then.
type coreHolder struct {
	core    atomic.Pointer[core]
	ready   chan struct{}       // closed once there is a core
	contact controllers.Contact // with the API server
}

func newCoreHolder() *coreHolder { return &coreHolder{ready: make(chan struct{})} }

// set stores the core.
func (h *coreHolder) set(c core) {
	if h.core.Swap(&c) == nil {
		close(h.ready)
	}
}

// isSet reports whether there is a core.
func (h *coreHolder) isSet() bool { return h.core.Load() != nil }

// await returns nil once there is a core. When ctx ends first, it returns why there is none.
func (h *coreHolder) await(ctx context.Context) error {
	select {
	case <-h.ready:
	case <-ctx.Done():
	}
	return h.check(ctx)
}

// get returns the core, or podnet.ErrPodsUnknown if there is none yet.
func (h *coreHolder) get() (core, error) {
	if c := h.core.Load(); c != nil {
		return *c, nil
	}
	return core{}, podnet.ErrPodsUnknown
}

// check returns why there is no core yet, or nil.
func (h *coreHolder) check(context.Context) error {
	if h.isSet() {
		return nil
	}
	return h.watches()
}

// watches returns why the agent learns nothing of new pods by its watches, or nil. Without the API server an agent that has its core goes on
// with what it knows, and stays ready: nothing else could serve its node better.
func (h *coreHolder) watches() error {
	_, err := h.get()
	return errors.Join(err, h.contact.Err())
}

// note returns what readiness says of an agent that is ready without the API server, or "".
func (h *coreHolder) note() string {
	if err := h.contact.Err(); err != nil {
		return oneLine(err.Error())
	}
	return ""
}
