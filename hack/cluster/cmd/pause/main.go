// Command pause is the first process of a pod: it keeps the sandbox's namespaces, reaps orphans and ends on a signal.
package main

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// SIGCHLD is a signal like the others here: no second goroutine is needed to wait for children.
func main() {
	// A burst of ends may lose signals, but one is enough to collect them all.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		reap()
	}
}

// reap collects every child that has ended: several may end for one signal.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == nil && pid <= 0 {
			return
		}
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}
