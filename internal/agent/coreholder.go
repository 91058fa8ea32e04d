package agent

import (
	"context"
	"errors"
	"sync"
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
	contact controllers.Contact // with the API server

	made, closed sync.Once
	ready        chan struct{}
}

// set stores the core.
func (h *coreHolder) set(c core) {
	h.core.Store(&c)
	h.closed.Do(func() { close(h.isSet()) })
}

// isSet is closed once there is a core.
func (h *coreHolder) isSet() chan struct{} {
	h.made.Do(func() { h.ready = make(chan struct{}) })
	return h.ready
}

// await returns nil once there is a core. When ctx ends first, it returns why there is none.
func (h *coreHolder) await(ctx context.Context) error {
	select {
	case <-h.isSet():
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
	if h.core.Load() == nil {
		return h.watches()
	}
	return nil
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
