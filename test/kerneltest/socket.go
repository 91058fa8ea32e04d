package kerneltest

import (
	"net"
	"sync/atomic"
	"testing"
)

// CountConnections serves a unix socket until the test ends, and returns how many connections it has had: nobody may be led to it.
func CountConnections(t *testing.T, path string) *atomic.Int64 {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	count := &atomic.Int64{}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			count.Add(1)
			_ = c.Close()
		}
	}()
	return count
}
