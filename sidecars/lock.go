package sidecars

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/jitter"
)

// lockPause is the longest time between two looks at whether another agent still has the lock.
const lockPause = 50 * time.Millisecond

// Lock locks an open file or directory without waiting, and reports whether this process has the lock now. Unlock gives it back, and so does the
// kernel when the process ends: no lock is ever stale.
func Lock(f *os.File) (locked bool, err error) {
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return true, nil
}

// Unlock gives a lock back, and closes the file. Closing alone is not enough: a process that is just being started has the file, too.
func Unlock(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	_ = f.Close()
}

// awaitLock returns the locked root once no other agent of the node has it, or nil when ctx ends. An update of the agent runs the new one before it
// ends the old one: two would remove each other's containers and files.
func awaitLock(ctx context.Context, root string) *os.File {
	for said := false; ctx.Err() == nil; {
		held, err := lockFile(root)
		if held != nil {
			log.FromContext(ctx).Info("the node's proxies are looked after")
			return held
		}
		if !said && err != nil {
			log.FromContext(ctx).Error(err, "the node's proxies are not looked after")
		} else if !said {
			log.FromContext(ctx).Info("another agent of this node looks after its proxies until it ends", "directory", root)
		}
		said = true
		jitter.Wait(ctx, lockPause)
	}
	return nil
}

// lockFile returns an open file or directory with its lock, or nil if another process has that.
func lockFile(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	locked, err := Lock(f)
	if !locked {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
