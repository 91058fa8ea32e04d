package netns_test

import (
	"context"
	"errors"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/test/kerneltest"
)

// The next namespace that is opened gets the number of the descriptor that was closed last, and with it the same path.
func TestALateVisitRefusesItsOwnNamespaceOnly(t *testing.T) {
	v, pod, other := netns.NewVisits(), kerneltest.New(t), kerneltest.New(t)
	visit := func(ctx context.Context, path string, f func(context.Context, *netns.NS) (bool, error)) error {
		_, err := netns.Visit(ctx, v, path, netns.Open, f)
		return err
	}
	nothing := func(context.Context, *netns.NS) (bool, error) { return true, nil }
	by := func(ns *netns.NS) string {
		n, err := netns.Open(ns.Path())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = n.Close() })
		return n.Path()
	}
	stuck, ended := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	start := time.Now()
	err := visit(ctx, pod.Path(), func(_ context.Context, ns *netns.NS) (bool, error) {
		<-stuck
		again, err := netns.Open(ns.Path())
		if err == nil && again.ID() != pod.ID() {
			err = errors.New("the namespace was closed meanwhile")
		}
		ended <- err
		return true, errors.Join(err, again.Close())
	})
	if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > time.Second {
		t.Errorf("after %s: %v", took, err)
	}
	for _, path := range []string{pod.Path(), by(pod)} {
		if err := visit(t.Context(), path, nothing); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "has not finished") {
			t.Errorf("another call for it: %v", err)
		}
	}
	for _, path := range []string{other.Path(), by(other)} {
		if err := visit(t.Context(), path, nothing); err != nil {
			t.Errorf("another namespace: %v", err)
		}
	}
	close(stuck)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	kerneltest.Eventually(t, "the namespace is open to calls again", func() bool { return visit(t.Context(), pod.Path(), nothing) == nil })
}

func TestVisitIsInsideOnOneThread(t *testing.T) {
	host, err := netns.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	v, pod := netns.NewVisits(), kerneltest.New(t)
	for range 20 {
		_, err := netns.Visit(t.Context(), v, pod.Path(), netns.Open, func(_ context.Context, ns *netns.NS) (bool, error) {
			thread := unix.Gettid()
			err := ns.Inside(func() error {
				if unix.Gettid() != thread {
					t.Error("another thread was moved into the namespace")
				}
				here, err := netns.Open("/proc/thread-self/ns/net")
				if err == nil && here.ID() != pod.ID() {
					t.Errorf("inside is %v, want %v", here.ID(), pod.ID())
				}
				return errors.Join(err, here.Close())
			})
			mustBeOutside(t, host) // all other goroutines
			return true, err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	mustBeOutside(t, host)
}

// The thread of a Visit serves other goroutines afterwards, in the host's namespace.
func TestAVisitThatHasEndedIsInsideNoMore(t *testing.T) {
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	v, pod := netns.NewVisits(), kerneltest.New(t)
	ended := make(chan *netns.NS)
	for range 20 {
		go func() {
			ns, err := netns.Visit(t.Context(), v, pod.Path(), netns.Open, func(_ context.Context, ns *netns.NS) (*netns.NS, error) { return ns, nil })
			if err != nil {
				t.Error(err)
			}
			ended <- ns
		}()
		ns := <-ended
		inside := make(chan error)
		for range 4 { // one of them may be on the Visit's thread
			go func() { inside <- ns.Inside(func() error { return nil }) }()
			if err := <-inside; err == nil {
				t.Error("a closed namespace is entered")
			}
		}
	}
}
