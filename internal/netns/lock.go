package netns

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockPause lies between two looks at a lock that somebody else has.
	lockPause = time.Millisecond
	// lockLimit is how long somebody may have it: beyond what any agent takes for one namespace, and a part of what a runtime
	// waits for the answer to a new pod.
	lockLimit = 250 * time.Millisecond
	// lockShare is the part of the caller's time that waiting may take: the rest is for the work.
	lockShare = 3
)

// Alone calls look, and act unless look finds nothing to do, while no other process does the same with the namespace. Two
// agents are on a node while one takes over from the other, and what one of them reads, to write something else in its
// place, must not be changed by the other between the two. Nobody waits who has nothing to do.
//
// The lock is on the namespace's file itself, which every process sees whatever path it came by. Close gives it back, and so
// does the end of the process. A lock that is held for 250 ms, or a third of the caller's time, is passed over: the processes
// of a pod can take that of their own namespace, and an agent can be stopped while it has one.
func (n *NS) Alone(ctx context.Context, look func() (done bool, err error), act func() error) error {
	alone, err := n.tryLock()
	if err != nil {
		return err
	}
	done, err := look()
	if err != nil || done {
		return err
	}
	if !alone {
		if err := n.lock(ctx); err != nil {
			return err
		}
		if done, err := look(); err != nil || done {
			return err
		}
	}
	return act()
}

func (n *NS) lock(ctx context.Context) error {
	tick := time.NewTicker(lockPause)
	defer tick.Stop()
	limit := lockLimit
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/lockShare)
	}
	for start := time.Now(); time.Since(start) < limit; {
		if got, err := n.tryLock(); err != nil || got {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for another process that works on the network namespace: %w", ctx.Err())
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("wait for another process that works on the network namespace: %w", err)
	}
	return nil
}

func (n *NS) tryLock() (got bool, err error) {
	err = unix.Flock(n.Fd(), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock network namespace: %w", err)
	}
	return true, nil
}
