package kerneltest

import (
	"fmt"
	"os"
	goruntime "runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
)

// Hop has a thread go from one namespace to the next until the test ends, and returns the path in /proc that leads to where it is.
func Hop(t testing.TB, among ...*netns.NS) (path string) {
	t.Helper()
	at, stop, ended := make(chan string, 1), make(chan struct{}), make(chan error, 1)
	go func() {
		goruntime.LockOSThread() // for ever: the thread ends with this goroutine
		at <- fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		for i := 0; ; i++ {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			if err := unix.Setns(among[i%len(among)].Fd(), unix.CLONE_NEWNET); err != nil {
				ended <- err
				return
			}
			<-time.After(time.Duration(i%7) * 100 * time.Microsecond)
		}
	}()
	t.Cleanup(func() {
		close(stop)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return <-at
}
