package netns

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// PanicError is a panic as an error. What a pod's namespace holds must never end the process, which serves every other pod.
// Callers find it with errors.As and count it: it is a fault of ours.
type PanicError struct {
	Value any
	Stack []byte // of the goroutine that panicked; many lines, for the log
}

// Error is one line, for reports.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Contain calls f and gives a panic inside it as a *PanicError. A goroutine that f starts is not covered.
func Contain(f func() error) (err error) {
	finished := false
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		} else if !finished {
			err = errors.New("the goroutine was ended from inside") // runtime.Goexit
		}
	}()
	err = f()
	finished = true
	return err
}

// inThread runs f on a thread of its own, which dies with the goroutine since it is never unlocked: whatever namespace it
// ended in, no other goroutine will find itself there. A panic of f is an error of the caller's.
func inThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		goruntime.LockOSThread()
		err := errors.New("the goroutine was ended from inside")
		defer func() { done <- err }()
		if unix.Gettid() == os.Getpid() {
			// The main thread stands for the process in /proc/self: keep it where it is while another one works.
			defer goruntime.UnlockOSThread()
			err = inThread(f)
			return
		}
		err = Contain(f)
	}()
	return <-done
}
