package nri

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"

	"istio-pod-network-controller/internal/jitter"
)

// Bounds of the wait between two attempts to connect to the same socket file. The first is short because a runtime binds its socket a
// moment before it listens.
const (
	firstWait = 50 * time.Millisecond
	lastWait  = 10 * time.Second
)

// socketCheckInterval is the time between two looks at the socket's path while there is no connection.
const socketCheckInterval = 100 * time.Millisecond

// socketFile identifies a socket's file: a runtime that restarts makes a new file. The zero value means that there is none.
type socketFile struct {
	device, inode uint64
	changed       syscall.Timespec
}

func socketFileAt(path string) socketFile {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) != nil {
		return socketFile{}
	}
	return socketFile{device: st.Dev, inode: st.Ino, changed: st.Ctim}
}

// absent reports whether an error of connecting means that nobody listens: there is no file, or it is left from a process that has ended.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOTDIR)
}

// unanswered reports whether an error of connecting means that the runtime accepted and then did not answer.
func unanswered(err error) bool {
	return errors.Is(err, errSilent) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.Is(err, syscall.EAGAIN) // the queue of the socket is full
}

// backOff bounds the wait between attempts to connect to one socket file.
type backOff struct {
	file socketFile
	wait time.Duration
}

// next doubles the bound, or sets it back to firstWait for another file.
func (b *backOff) next(file socketFile) {
	if file != b.file || b.wait == 0 {
		*b = backOff{file: file, wait: firstWait}
		return
	}
	b.wait = min(2*b.wait, lastWait)
}

// await returns after a random wait within the bound, when the path leads to another file than tried, or when ctx ends.
func (b *backOff) await(ctx context.Context, path string, last socketFile) {
	end := time.NewTimer(jitter.Full(b.wait))
	defer end.Stop()
	look := time.NewTicker(socketCheckInterval)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-end.C:
			return
		case <-look.C:
			if now := socketFileAt(path); now != last && now != (socketFile{}) {
				return
			}
		}
	}
}
