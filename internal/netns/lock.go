package netns

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockPause is the time between two attempts to get a lock that somebody else holds.
	lockPause = time.Millisecond
	// lockLimit is how long to wait for the lock. It is longer than any agent works on one namespace, and a small part of the time that a
	// runtime waits for its answer.
	lockLimit = 250 * time.Millisecond
	// lockShare is the part of the caller's time that may be spent waiting (1/lockShare); the rest is for the work.
	lockShare = 3
)

// Alone calls look, and then act unless look reports that nothing is to be done. It holds a lock from before look until act has returned:
// two agents are on a node while one takes over from the other, and neither may change what the other has read and is about to replace.
// If somebody else holds the lock, look is called without it, and again once it is free: a caller that has nothing to do does not wait.
//
// The lock is on the namespace's own file, which is the same for all processes whatever path they use; it also ends with the process.
// After 250 ms, or a third of the caller's time, act is called without the lock: a process of the pod can hold the lock of its own
// namespace, and an agent can be stopped while it holds one.
func (n *NS) Alone(ctx context.Context, look func() (done bool, err error), act func() error) error {
	alone, err := n.tryLock()
	if err != nil {
		return err
	}
	defer n.unlock()
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

// unlock releases the lock, if this call has it: other locks are of other open files.
func (n *NS) unlock() { _ = unix.Flock(n.Fd(), unix.LOCK_UN) }

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
