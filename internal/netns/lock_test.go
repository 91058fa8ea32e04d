package netns_test

import (
	"context"
	"errors"
	goruntime "runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/test/kerneltest"
)

// other opens a namespace once more, as another process would.
func other(t *testing.T, ns *netns.NS) *netns.NS {
	t.Helper()
	n, err := netns.Open(ns.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func TestOneAtATimeSeesAndChangesANamespace(t *testing.T) {
	ns := kerneltest.New(t)
	const agents = 8
	var inside, changes atomic.Int32
	done := make(chan error, agents)
	start := make(chan struct{})
	looked := make(chan struct{}, 2*agents)
	for range agents {
		n := other(t, ns)
		go func() {
			<-start
			done <- n.Alone(t.Context(), func() (bool, error) {
				looked <- struct{}{}
				return false, nil
			}, func() error {
				changes.Add(1)
				if inside.Add(1) != 1 {
					return errors.New("two act at once")
				}
				goruntime.Gosched()
				inside.Add(-1)
				return nil
			})
		}()
	}
	close(start)
	for range agents {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if changes.Load() != agents || len(looked) < agents {
		t.Errorf("%d acted, after %d looks", changes.Load(), len(looked))
	}
}

func TestWhoWaitedLooksAgain(t *testing.T) {
	ns := kerneltest.New(t)
	first, second := other(t, ns), other(t, ns)
	looks, acted := 0, false
	err := first.Alone(t.Context(), func() (bool, error) { return false, nil }, func() error {
		return second.Alone(t.Context(), func() (bool, error) {
			if looks++; looks == 1 {
				return false, first.Close() // what it saw is old now
			}
			return true, nil
		}, func() error { acted = true; return nil })
	})
	if err != nil || looks != 2 || acted {
		t.Errorf("%d looks, acted %v, error %v", looks, acted, err)
	}
}

// A lock that a process of the pod or a stopped agent holds must neither keep the pod from its rules, nor delay a caller that
// has nothing to write.
func TestALockThatIsNotGivenBackIsPassedOver(t *testing.T) {
	ns := kerneltest.New(t)
	if err := unix.Flock(ns.Fd(), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	todo := func() (bool, error) { return false, nil }
	start, acted := time.Now(), false
	err := other(t, ns).Alone(t.Context(), todo, func() error { acted = true; return nil })
	if took := time.Since(start); err != nil || !acted || took < 100*time.Millisecond {
		t.Errorf("acted %v after %s: %v", acted, took, err)
	}
	// Who has less time than that keeps most of it for the work.
	ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
	defer cancel()
	start, acted = time.Now(), false
	err = other(t, ns).Alone(ctx, todo, func() error { acted = ctx.Err() == nil; return nil })
	if took := time.Since(start); err != nil || !acted {
		t.Errorf("with 600 ms: acted %v after %s: %v", acted, took, err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), -time.Millisecond)
	defer cancel()
	act := func() error { t.Error("acted although the caller's time was up"); return nil }
	if err := other(t, ns).Alone(ctx, todo, act); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller's time is up: %v", err)
	}
	if err := other(t, ns).Alone(ctx, func() (bool, error) { return true, nil }, act); err != nil {
		t.Errorf("there was nothing to wait for: %v", err)
	}
	fault := errors.New("cannot look")
	if err := other(t, ns).Alone(t.Context(), func() (bool, error) { return false, fault }, act); !errors.Is(err, fault) {
		t.Error(err)
	}
}

// The namespace stays open after a call within a Visit: the next backend opens it anew, and must not wait.
func TestTheLockIsGivenBackWhileTheNamespaceIsOpen(t *testing.T) {
	ns := kerneltest.New(t)
	look := func() (bool, error) { return false, nil }
	fault := errors.New("as asked")
	for name, call := range map[string]func(n *netns.NS) error{
		"done":     func(n *netns.NS) error { return n.Alone(t.Context(), look, func() error { return nil }) },
		"not done": func(n *netns.NS) error { return n.Alone(t.Context(), look, func() error { return fault }) },
		"not looked": func(n *netns.NS) error {
			return n.Alone(t.Context(), func() (bool, error) { return false, fault }, nil)
		},
		"not to do": func(n *netns.NS) error { return n.Alone(t.Context(), func() (bool, error) { return true, nil }, nil) },
		"a panic":   func(n *netns.NS) error { return netns.Contain(func() error { return n.Alone(t.Context(), look, nil) }) },
	} {
		_ = call(other(t, ns))
		if err := unix.Flock(ns.Fd(), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := unix.Flock(ns.Fd(), unix.LOCK_UN); err != nil {
			t.Fatal(err)
		}
	}
}
