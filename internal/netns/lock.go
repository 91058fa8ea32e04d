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
	// lockLimit is how long somebody may have it: beyond what any agent takes for one namespace.
	lockLimit = 500 * time.Millisecond
)

// Alone calls look, and act unless look finds nothing to do, while no other process does the same with the namespace. Two
// agents are on a node while one takes over from the other, and what one of them reads, to write something else in its
// place, must not be changed by the other between the two. Nobody waits who has nothing to do.
//
// It is the namespace's file itself that is locked, which every process sees whatever path it came by; Close, or the end of
// the process, gives it back. A lock that is held too long is passed over: the processes of a pod can take that of their
// own namespace, and an agent can be stopped while it has one. Neither may keep the pod from its rules.
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
	for start := time.Now(); time.Since(start) < lockLimit; {
		if got, err := n.tryLock(); err != nil || got {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for another process that works on the network namespace: %w", ctx.Err())
		}
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
