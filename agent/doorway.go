package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
)

// doorwayPoll is the time between two looks at whether another agent of the node serves.
const doorwayPoll = 200 * time.Millisecond

// doorway decides when this agent serves a hook.
//
//   - With its pods read it serves, and then holds a shared flock(2) on the directory of the hook's socket, which all agents of the node
//     have. Before it is connected it does not: with no plugin connected, a call that is under way would let its pod start without rules.
//     The kernel frees the lock when the process ends, so none is ever stale.
//   - Without them it serves, and refuses, only while no other agent holds that lock: a release that cannot read its pods would refuse pods
//     that another one lets start. Nor does it begin with what was kept from before an outage. Two agents without their pods both refuse.
type doorway struct {
	dir     string
	core    *coreHolder
	waiting atomic.Bool
	looking sync.Mutex // one look at once: each takes the lock for a moment
	// connected reports whether the hook serves.
	connected func() bool
}

func newDoorway(socket string, core *coreHolder, connected func() bool) *doorway {
	d := &doorway{dir: filepath.Dir(socket), core: core, connected: connected}
	core.doors = append(core.doors, d)
	return d
}

// guard returns a runnable that calls run whenever this agent may serve, and ends run's ctx when it may no longer.
func (d *doorway) guard(run runnable) runnable {
	return func(ctx context.Context) error {
		for {
			if yielded, err := d.serve(ctx, run); err != nil || !yielded {
				return err
			}
		}
	}
}

// serve waits until this agent may serve, and calls run once. It reports whether run was ended for another agent.
func (d *doorway) serve(ctx context.Context, run runnable) (yielded bool, err error) {
	d.await(ctx)
	serving, yield := context.WithCancel(ctx)
	var held *os.File
	var watching sync.WaitGroup
	watching.Go(func() { held = d.watch(serving, yield) })
	err = run(serving)
	yielded = serving.Err() != nil && ctx.Err() == nil
	yield()
	watching.Wait()
	if held != nil {
		_ = held.Close() // frees the lock
	}
	return yielded, err
}

// await returns when this agent may serve, or ctx ends.
func (d *doorway) await(ctx context.Context) {
	tick := time.NewTicker(doorwayPoll)
	defer tick.Stop()
	defer d.waiting.Store(false)
	for !d.core.isSet() && ctx.Err() == nil && d.othersServe() {
		if !d.waiting.Swap(true) {
			logr.FromContextOrDiscard(ctx).Info("another agent of this node serves", "directory", d.dir)
		}
		select {
		case <-tick.C:
		case <-d.core.ready:
		case <-ctx.Done():
		}
	}
}

// watch calls yield when this agent may serve no longer, or returns the shared lock as soon as it has its pods and is connected. It tries again:
// the directory may be made later, and another agent's look takes the lock for a moment.
func (d *doorway) watch(ctx context.Context, yield func()) (held *os.File) {
	tick := time.NewTicker(doorwayPoll)
	defer tick.Stop()
	for reported := false; ; {
		switch {
		case !d.core.isSet():
			if d.othersServe() {
				yield()
				return nil
			}
		case d.connected():
			dir, err := d.lock(unix.LOCK_SH)
			if err == nil {
				return dir
			}
			if !reported && !errors.Is(err, unix.EWOULDBLOCK) {
				logr.FromContextOrDiscard(ctx).Info("other agents of this node cannot see this one", "reason", err.Error())
				reported = true
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// othersServe reports whether another agent holds the shared lock.
func (d *doorway) othersServe() bool {
	d.looking.Lock()
	defer d.looking.Unlock()
	dir, err := d.lock(unix.LOCK_EX)
	if err != nil {
		return errors.Is(err, unix.EWOULDBLOCK)
	}
	defer dir.Close()                           //nolint:errcheck // nothing was written
	_ = unix.Flock(int(dir.Fd()), unix.LOCK_UN) // a process that is just being started has the directory, too
	return false
}

// lock returns the directory, locked until it is closed.
func (d *doorway) lock(how int) (*os.File, error) {
	dir, err := os.Open(d.dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(dir.Fd()), how|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", d.dir, err), dir.Close())
	}
	return dir, nil
}

// check returns why this agent waits, or else what the hook's own check does.
func (d *doorway) check(hook func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if reason := d.core.check(ctx); d.waiting.Load() && reason != nil {
			return fmt.Errorf("another agent of this node serves; this one takes over when it has read its pods: %w", reason)
		}
		return hook(ctx)
	}
}
