package home

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

// LockPause is the longest time between two looks at whether another agent still has the lock.
const LockPause = 50 * time.Millisecond

// LockFile opens a file or directory and locks it without waiting. It returns nil if another process has the lock. Unlock gives it back, and so does
// the kernel when the process ends: no lock is ever stale.
func LockFile(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, flag, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// Unlock gives a lock back, and closes the file. Closing alone is not enough: a process that is just being started has the file, too.
func Unlock(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	_ = f.Close()
}

// AwaitLock returns the locked root once no other agent of the node has it, or nil when ctx ends. An update of the agent runs the new one before it
// ends the old one: two would remove each other's containers and files.
func AwaitLock(ctx context.Context, root string) *os.File {
	for said := false; ctx.Err() == nil; {
		held, err := LockFile(root, os.O_RDONLY)
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
		jitter.Wait(ctx, LockPause)
	}
	return nil
}
