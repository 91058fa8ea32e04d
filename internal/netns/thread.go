package netns

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// PanicError is a panic as an error. The content of one pod's namespace must never end the process, which serves all other pods.
// Callers find it with errors.As and count it: it is a fault of the agent.
type PanicError struct {
	Value any
	Stack []byte // of the goroutine that panicked; many lines, for the log
}

// Error returns one line, for reports.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Contain calls f and returns a panic of it as a *PanicError. Goroutines that f starts are not covered.
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
