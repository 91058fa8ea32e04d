package agent

import (
	"context"
	"errors"
	"sync/atomic"

	"istio-pod-network-controller/controllers"
)

// errNoAPI refuses what is asked before the agent knows its pods.
var errNoAPI = errors.New("the agent cannot reach the API server yet")

// core is what entrances need once the agent knows its pods.
type core struct {
	programmer *controllers.Programmer
	pods       controllers.Reader
}

// door leads from the entrances to the core. It is shut while the agent has not read its pods: the entrances are there from
// the first moment, and refuse.
type door struct {
	core atomic.Pointer[core]
	why  atomic.Pointer[error] // of the last attempt to reach the API server
}

// open lets everybody in.
func (d *door) open(c core) { d.core.Store(&c) }

// failed keeps why the door is still shut.
func (d *door) failed(err error) { d.why.Store(&err) }

// enter gives the core.
func (d *door) enter() (core, error) {
	if c := d.core.Load(); c != nil {
		return *c, nil
	}
	return core{}, errNoAPI
}

// check says why the door is shut.
func (d *door) check(context.Context) error {
	if _, err := d.enter(); err != nil {
		if why := d.why.Load(); why != nil {
			return errors.Join(err, *why)
		}
		return err
	}
	return nil
}
