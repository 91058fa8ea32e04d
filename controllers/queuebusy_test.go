package controllers

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
)

// busyBackend has namespaces that keep the kernel busy until the time of a call is over: those of the first pods.
type busyBackend struct {
	*timedBackend
	hostile int
}

func (b busyBackend) Apply(ctx context.Context, at podnet.Place, want iptables.Ruleset) (iptables.Outcome, error) {
	if !b.busy(at) {
		return b.timedBackend.Apply(ctx, at, want)
	}
	<-ctx.Done()
	return iptables.Outcome{}, ctx.Err()
}

func (b busyBackend) Present(ctx context.Context, at podnet.Place) (bool, error) {
	if b.busy(at) {
		<-ctx.Done()
	}
	return true, ctx.Err()
}

func (b busyBackend) busy(at podnet.Place) bool {
	var number int
	_, err := fmt.Sscanf(at.Path, "/netns/%d", &number)
	return err == nil && number < b.hostile
}

// wrongPods are manyPods, of which the first have a wrong annotation.
type wrongPods struct {
	manyPods
	wrong int
}

func (p *wrongPods) Pod(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	pod, err := p.manyPods.Pod(ctx, s)
	var number int
	if _, errNumber := fmt.Sscanf(s.UID, manyUID+"%d", &number); errNumber == nil && number < p.wrong {
		pod.Annotations[wrongKey] = "http"
	}
	return pod, err
}

// Pods whose namespaces keep the kernel busy change ten times a second. A new pod has its rules after one of their visits at first, and at once
// when they are known, and others are checked in time. A wrong annotation changes nothing about that.
func TestQueue_podsThatKeepTheKernelBusy_delayNoNewPod(t *testing.T) {
	for _, c := range []struct{ hostile, wrong int }{{1, 0}, {16, 0}, {32, 0}, {100, 0}, {32, 32}, {100, 100}} {
		hostile := c.hostile
		t.Run(fmt.Sprintf("%d, %d wrong", hostile, c.wrong), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.addPods(hostile + 20)
				b.Pods = &wrongPods{wrong: c.wrong}
				for _, e := range b.Ledger.Entries() {
					b.finder.sandboxes[e.Sandbox.UID] = e.Sandbox
				}
				for i := range 60 {
					b.finder.sandboxes[fmt.Sprint(manyUID, 1000+i)] = podnet.Sandbox{ID: fmt.Sprint("sandbox-", 1000+i), NetNS: fmt.Sprint("/netns/", 1000+i)}
				}
				kernel := newTimed(b, time.Millisecond)
				b.Backend, b.VerifyInterval = busyBackend{kernel, hostile}, 10*time.Second
				first, later := kernel.attacked(t, b, hostile)
				rounds := time.Duration(1 + hostile/mostVisits)
				if first > rounds*(kernelLimit+time.Second) || later > time.Second {
					t.Errorf("a new pod had its rules after %s at first, and after %s later", first, later)
				}
				for i := range 20 {
					kernel.checkedInTime(t, fmt.Sprint("/netns/", hostile+i), b.VerifyInterval)
				}
			})
		})
	}
}

// attacked makes a new pod each second of a minute, in which the hostile pods change all the time. It returns how long a new pod waited for its
// rules, at most, in the first ten seconds and later.
func (b *timedBackend) attacked(t *testing.T, on *bench, hostile int) (first, later time.Duration) {
	t.Helper()
	watch := newWorkWatch(on)
	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	working.Go(func() { on.work(ctx, t, watch) })
	for second := range 60 {
		for range 10 {
			change(watch, 0, hostile)
			<-time.After(100 * time.Millisecond)
		}
		change(watch, 1000+second, 1001+second)
		took := b.until(t, fmt.Sprint("/netns/", 1000+second))
		if second < 10 {
			first = max(first, took)
		} else {
			later = max(later, took)
		}
	}
	cancel()
	working.Wait()
	return first, later
}

// checkedInTime wants checks as docs/how-it-works.md promises.
func (b *timedBackend) checkedInTime(t *testing.T, path string, interval time.Duration) {
	t.Helper()
	last := time.Duration(0)
	for _, at := range append(b.calls[path], time.Minute) {
		if at-last > interval*5/4+5*time.Second {
			t.Errorf("%s was checked after %s", path, at-last)
		}
		last = at
	}
}

// change has pods visited as if they had changed.
func change(w *PodWatch, from, to int) {
	for i := range to - from {
		w.queue.Add(ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "shop", Name: fmt.Sprint("pod-", from+i)}})
	}
}

// until waits for the first call in a namespace, and returns how long that took.
func (b *timedBackend) until(t *testing.T, path string) time.Duration {
	t.Helper()
	for began := time.Now(); ; <-time.After(10 * time.Millisecond) {
		b.mu.Lock()
		n := len(b.calls[path])
		b.mu.Unlock()
		if took := time.Since(began); n > 0 {
			return took
		} else if took > time.Minute {
			t.Fatalf("%s was never programmed", path)
		}
	}
}
