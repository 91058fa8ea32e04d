package netns_test

import (
	"errors"
	"os"
	goruntime "runtime"
	"strings"
	"testing"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/test/kerneltest"
)

// Nobody can recover from a panic on another goroutine: it would end the agent.
func TestAPanicInsideIsAnErrorOutside(t *testing.T) {
	ns := kerneltest.New(t)
	before := descriptors(t)
	for name, do := range map[string]func(func() error) error{"inside the namespace": ns.Inside, "contained": netns.Contain} {
		err := do(func() error {
			return errors.New(name[len(name)+1:])
		})
		var p *netns.PanicError
		if !errors.As(err, &p) || !strings.Contains(err.Error(), "slice bounds out of range") || !strings.Contains(string(p.Stack), "thread_test.go") {
			t.Errorf("%s: %v: want the value and where it was", name, err)
		}
		if err := do(func() error { return os.ErrClosed }); !errors.Is(err, os.ErrClosed) || errors.As(err, new(*netns.PanicError)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := ns.Inside(func() error { goruntime.Goexit(); return nil }); err == nil {
		t.Error("the goroutine ended, and all is said to be well")
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
