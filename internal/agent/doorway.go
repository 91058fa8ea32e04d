package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
)

// doorwayPoll is the time between two looks at whether another agent of the node still serves.
const doorwayPoll = 200 * time.Millisecond

// doorway decides when this agent takes an entrance. While another agent of the node serves there, it waits until it has read its pods: a
// release that cannot do so would refuse pods that its predecessor lets start. Without another one it serves at once, and refuses.
//
// Each agent that serves holds a shared flock(2) on the directory of the entrance's socket, which all agents of the node have. The kernel
// frees it when the process ends, so none is ever stale.
type doorway struct {
	dir     string
	core    *coreHolder
	waiting atomic.Bool
}

func newDoorway(socket string, core *coreHolder) *doorway {
	return &doorway{dir: filepath.Dir(socket), core: core}
}

// once returns a runnable that starts run when this agent may serve, and says until run ends that it does.
func (d *doorway) once(run runnable) runnable {
	return func(ctx context.Context) error {
		dir, err := os.Open(d.dir)
		if err != nil {
			logr.FromContextOrDiscard(ctx).Info("served at once: other agents of this node cannot be seen", "reason", err.Error())
			return run(ctx)
		}
		defer dir.Close() //nolint:errcheck // it frees the lock
		d.await(ctx, int(dir.Fd()))
		return run(ctx)
	}
}

// await returns when this agent may serve, or ctx ends. Then the directory has its shared lock, unless the file system has no locks.
func (d *doorway) await(ctx context.Context, dir int) {
	tick := time.NewTicker(doorwayPoll)
	defer tick.Stop()
	for d.othersServe(dir) {
		if !d.waiting.Swap(true) {
			logr.FromContextOrDiscard(ctx).Info("another agent of this node serves", "directory", d.dir)
		}
		select {
		case <-tick.C:
			continue
		case <-d.core.isSet():
		case <-ctx.Done():
		}
		break
	}
	if err := unix.Flock(dir, unix.LOCK_SH|unix.LOCK_NB); err != nil {
		logr.FromContextOrDiscard(ctx).Info("other agents of this node cannot see this one", "directory", d.dir, "reason", err.Error())
	}
	d.waiting.Store(false)
}

// othersServe reports whether another agent holds the shared lock.
func (*doorway) othersServe(dir int) bool {
	return errors.Is(unix.Flock(dir, unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// check returns why this agent waits, or else what the entrance's own check does.
func (d *doorway) check(entrance func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if reason := d.core.check(ctx); d.waiting.Load() && reason != nil {
			return fmt.Errorf("another agent of this node serves; this one takes over when it has read its pods: %w", reason)
		}
		return entrance(ctx)
	}
}
