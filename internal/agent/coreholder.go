package agent

import (
	"context"
	"errors"
	"sync/atomic"

	"istio-pod-network-controller/controllers"
)

// errNoAPI refuses entrances while the agent has not read its pods.
var errNoAPI = errors.New("the agent cannot reach the API server yet")

// core is what the entrances need of the core.
type core struct {
	programmer *controllers.Programmer
	pods       controllers.Reader
	managed    *proxies // nil without --sidecars
}

// coreHolder passes the core to the entrances. It is empty until the agent has read its pods: NRI and CNI are served from the start, and
// refuse pods until then.
type coreHolder struct {
	core   atomic.Pointer[core]
	reason atomic.Pointer[error] // the last error of reaching the API server
}

// set stores the core.
func (h *coreHolder) set(c core) { h.core.Store(&c) }

// setReason stores why there is no core yet.
func (h *coreHolder) setReason(err error) { h.reason.Store(&err) }

// get returns the core, or errNoAPI if there is none yet.
func (h *coreHolder) get() (core, error) {
	if c := h.core.Load(); c != nil {
		return *c, nil
	}
	return core{}, errNoAPI
}

// check returns why there is no core yet, or nil.
func (h *coreHolder) check(context.Context) error {
	if _, err := h.get(); err != nil {
		if reason := h.reason.Load(); reason != nil {
			return errors.Join(err, *reason)
		}
		return err
	}
	return nil
}
