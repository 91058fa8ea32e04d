package nftables

import (
	"context"
	"errors"
	"os"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/test/kerneltest"
)

// visitOnce has opened what stays open.
func visitOnce(t *testing.T, b *Backend, ns *netns.NS) {
	t.Helper()
	if _, err := b.Present(t.Context(), ns.Path()); err != nil {
		t.Fatal(err)
	}
}

// A process of a pod can keep the kernel busy with the pod's nftables, and nothing ends a call that waits for it.
func TestAVisitComesBackByItsDeadline(t *testing.T) {
	ns, b := kerneltest.New(t), New(kerneltest.Guard(t))
	visitOnce(t, b, ns)
	before := openDescriptors(t)
	stuck, ended := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := visit(ctx, b, ns.Path(), func(context.Context, *netns.NS, *socket) (bool, error) {
		<-stuck
		close(ended)
		return true, nil
	})
	if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > time.Second {
		t.Errorf("after %s: %v", took, err)
	}
	if _, err := b.Present(t.Context(), ns.Path()); err == nil || !strings.Contains(err.Error(), "has not finished") {
		t.Errorf("another call is not refused: %v", err)
	}
	if _, err := b.Present(t.Context(), kerneltest.New(t).Path()); err != nil {
		t.Errorf("another namespace is affected: %v", err)
	}
	close(stuck)
	<-ended
	kerneltest.Eventually(t, "the namespace is open to calls again", func() bool {
		_, err := b.Present(t.Context(), ns.Path())
		return err == nil
	})
	before++ // of the other namespace
	if after := openDescriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestAPanicIsAnErrorAndLeavesNothingOpen(t *testing.T) {
	ns, b := kerneltest.New(t), New(kerneltest.Guard(t))
	visitOnce(t, b, ns)
	before := openDescriptors(t)
	for range 5 {
		_, err := visit(t.Context(), b, ns.Path(), func(ctx context.Context, ns *netns.NS, _ *socket) (bool, error) {
			err := ns.Alone(ctx, func() (bool, error) { return false, nil }, func() error {
				panic("as asked") //nolint:forbidigo // what a decoder must never do
			})
			return err == nil, err
		})
		var p *netns.PanicError
		if !errors.As(err, &p) || p.Value != "as asked" {
			t.Fatal(err)
		}
	}
	goruntime.GC()
	if after := openDescriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	start := time.Now()
	mustApply(t, b, ns, rules(t, nil))
	if took := time.Since(start); took > 200*time.Millisecond {
		t.Errorf("apply took %s: the lock was not released", took)
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
