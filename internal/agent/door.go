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
}

// door leads from the entrances to the core. It is shut until the agent has read its pods: NRI and CNI are served from the start, and
// refuse pods until then.
type door struct {
	core atomic.Pointer[core]
	why  atomic.Pointer[error] // the last error of reaching the API server
}

// open opens the door.
func (d *door) open(c core) { d.core.Store(&c) }

// failed stores why the door is still shut.
func (d *door) failed(err error) { d.why.Store(&err) }

// enter returns the core, or errNoAPI while the door is shut.
func (d *door) enter() (core, error) {
	if c := d.core.Load(); c != nil {
		return *c, nil
	}
	return core{}, errNoAPI
}

// check returns why the door is shut, or nil.
func (d *door) check(context.Context) error {
	if _, err := d.enter(); err != nil {
		if why := d.why.Load(); why != nil {
			return errors.Join(err, *why)
		}
		return err
	}
	return nil
}
