package controllers

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"istio-pod-network-controller/internal/podnet"
)

// benchCache is a watch cache with the pods of a bench.
type benchCache struct {
	client.Reader
	*bench
}

func (c benchCache) Get(ctx context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	s := podnet.Sandbox{Namespace: key.Namespace, Name: key.Name, UID: "uid-1"}
	if number, many := strings.CutPrefix(key.Name, "pod-"); many {
		s.UID = manyUID + number
	}
	pod, err := c.Pods.Pod(ctx, s)
	if absent(err) {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	if out, ok := obj.(*corev1.Pod); ok && err == nil {
		*out = *pod
	}
	return err
}

// newWorkWatch returns a PodWatch with every pod of the ledger in its queue.
func newWorkWatch(b *bench) *PodWatch {
	w := NewPodWatch(benchCache{bench: b}, b.Programmer)
	for _, e := range b.Ledger.Entries() {
		if wait := b.wait(e.Sandbox.UID); wait > 0 {
			w.queue.due(e.Sandbox, wait)
		}
	}
	return w
}

// work has controller-runtime work on the queue until ctx ends.
func (*bench) work(ctx context.Context, t *testing.T, w *PodWatch) {
	t.Helper()
	o := w.queue.options()
	o.Reconciler, o.SkipNameValidation = w, new(true)
	c, err := controller.NewUnmanaged("pods", o)
	if err == nil {
		err = c.Start(ctx)
	}
	if err != nil {
		t.Error(err)
	}
}

// What two agents lose at one moment they do not ask for at the same moments.
func TestQueue_twoAgents_tryAgainAtDifferentMoments(t *testing.T) {
	for name, fault := range map[string]func(b *bench, tried func()){
		"the kernel fails":         func(b *bench, tried func()) { b.backend.during, b.backend.err = tried, errors.New("no") },
		"the sandbox is not there": func(b *bench, tried func()) { b.finder.during = tried; clear(b.finder.sandboxes) },
		"the runtime fails":        func(b *bench, tried func()) { b.finder.during, b.finder.err = tried, errors.New("no") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var agents [2][]time.Duration
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
				defer cancel()
				var working sync.WaitGroup
				for i := range agents {
					b, began := newBench(t), time.Now()
					fault(b, func() { agents[i] = append(agents[i], time.Since(began)) })
					watch := newWorkWatch(b)
					watch.queue.Add(request())
					working.Go(func() { b.work(ctx, t, watch) })
				}
				working.Wait()
				for i, at := range agents[0] {
					if i > 0 && slices.Contains(agents[1], at) {
						t.Errorf("both try after %s", at)
					}
				}
				if n := len(agents[0]); n < 15 || n > 200 || agents[0][n-1] < 3*time.Minute-2*lastBackOff {
					t.Errorf("tried at %s", agents[0])
				}
			})
		})
	}
}

func TestQueue_sandboxIsNotThere_waitsARandomPartOfTheTimeSoFar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, pod := newQueue(), askingPod()
		defer q.ShutDown()
		began := time.Now()
		for _, c := range []struct{ after, mean time.Duration }{{0, firstDelay}, {time.Second, 200 * time.Millisecond}, {10 * time.Second, 2 * time.Second}, {time.Hour, lastDelay}} {
			<-time.After(time.Until(began.Add(c.after)))
			sum, longest := time.Duration(0), time.Duration(0)
			for range 1000 {
				wait := q.absent(pod)
				sum, longest = sum+wait, max(longest, wait)
			}
			if mean := sum / 1000; mean < c.mean*8/10 || mean > c.mean*12/10 || longest > 2*c.mean {
				t.Errorf("after %s: waits %s on average, at most %s", c.after, mean, longest)
			}
		}
		recreated := askingPod()
		recreated.UID = "uid-2"
		if wait := q.absent(recreated); wait > 2*firstDelay {
			t.Errorf("a pod of the same name begins with %s", wait)
		}
		q.forget(request().NamespacedName)
		if wait := q.absent(pod); wait > 2*firstDelay {
			t.Errorf("a new wait begins with %s", wait)
		}
	})
}

// A runtime that announces sandboxes does not announce those of static pods.
func TestReconcile_sandboxIsNotThere_looksAgain(t *testing.T) {
	static := askingPod()
	static.Annotations[keyMirror] = "hash"
	for _, c := range []struct {
		announced bool
		pod       *corev1.Pod
		mean      time.Duration
	}{{false, askingPod(), firstDelay}, {true, askingPod(), lastDelay}, {true, static, firstDelay}} {
		w, b := newWatch(t, c.pod)
		b.Announcers = []func() bool{func() bool { return c.announced }}
		b.pods.pod = c.pod
		clear(b.finder.sandboxes)
		longest := time.Duration(0)
		for range 30 {
			got, err := w.Reconcile(t.Context(), request())
			if longest = max(longest, got.RequeueAfter); err != nil || got.RequeueAfter <= 0 {
				t.Fatalf("result %+v, error %v", got, err)
			}
		}
		if longest > 2*max(c.mean, lastDelay/10) || longest < c.mean {
			t.Errorf("announced %v, annotations %v: again after up to %s", c.announced, c.pod.Annotations, longest)
		}
	}
}

// The result of an early hook decides when the pod is visited, without any change at the API server.
func TestQueue_earlyHook_makesThePodDue(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, b *bench){
		"it has repaired rules": func(t *testing.T, b *bench) {
			t.Helper()
			b.backend.mu.Lock()
			b.backend.held["/netns/1"] = "spoilt"
			b.backend.mu.Unlock()
			if _, err := b.Ensure(t.Context(), NRI, b.known()); err != nil {
				t.Error(err)
			}
		},
		"it has failed": func(t *testing.T, b *bench) {
			t.Helper()
			b.fails(errors.New("no"))
			if _, err := b.Ensure(t.Context(), NRI, b.known()); err == nil {
				t.Error("no error")
			}
			b.fails(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.ensure(t, Changed)
				watch := newWorkWatch(b) // with VerifyInterval 0 nothing is due
				ctx, cancel := context.WithTimeout(t.Context(), lastBackOff+time.Second)
				defer cancel()
				var working sync.WaitGroup
				working.Go(func() { b.work(ctx, t, watch) })
				before(t, b)
				b.backend.mu.Lock()
				applies := b.backend.applies
				b.backend.mu.Unlock()
				working.Wait()
				if b.backend.applies == applies {
					t.Error("nobody looks at the pod")
				}
			})
		})
	}
}

// A pod is not visited twice at once, and a change during a visit is not lost.
func TestQueue_changeDuringAVisit_isFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		b.backend.during = func() { <-release }
		watch := newWorkWatch(b)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var working sync.WaitGroup
		working.Go(func() { b.work(ctx, t, watch) })
		watch.queue.Add(request())
		<-time.After(100 * time.Millisecond)
		synctest.Wait() // the visit is under way
		b.pods.pod.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "9000"
		for range 10 {
			watch.queue.Add(request())
		}
		<-time.After(100 * time.Millisecond)
		close(release)
		working.Wait()
		if !strings.Contains(b.backend.rules("/netns/1"), "9000") || b.backend.applies != 2 || b.backend.clash {
			t.Errorf("%d visits, two at once: %t, rules %s", b.backend.applies, b.backend.clash, b.backend.rules("/netns/1"))
		}
	})
}

// A check's due time has a monotonic reading (" m=" in its text): otherwise, setting the clock back by an hour would stop checks for an hour.
func TestDue_doesNotFollowTheClock(t *testing.T) {
	b := newBench(t)
	b.VerifyInterval = 10 * time.Second
	b.ensure(t, Changed)
	e, _ := b.Ledger.Of("uid-1")
	if at := b.schedule().due(e); !strings.Contains(at.String(), " m=") || time.Until(at) > 11*time.Second || b.wait("uid-1") > 12*time.Second {
		t.Errorf("due at %s, visited after %s", at, b.wait("uid-1"))
	}
}

// When a pod is due follows from what the ledger knows, and from nothing else.
func TestWait_followsTheLedger(t *testing.T) {
	for name, c := range map[string]struct {
		interval time.Duration
		change   func(e *Entry)
		longest  time.Duration
		never    bool
	}{
		"its rules are as they should be":        {interval: 10 * time.Second, longest: 12 * time.Second},
		"nothing is checked":                     {never: true},
		"somebody has changed its rules":         {interval: time.Hour, change: repairedOnce, longest: 2 * time.Second},
		"and nothing is checked":                 {change: repairedOnce, longest: 2 * time.Second},
		"its last visit did not learn the state": {interval: time.Hour, change: func(e *Entry) { e.Retry = true }, longest: lastBackOff},
		"its last check was not finished":        {interval: time.Hour, change: func(e *Entry) { e.contention = contention{}.withRepair(time.Unix(1, 0)) }, longest: lastBackOff},
	} {
		b := newBench(t)
		b.VerifyInterval = c.interval
		b.ensure(t, Changed)
		e, _ := b.Ledger.Of("uid-1")
		if c.change != nil {
			c.change(&e)
		}
		b.Ledger.Put(e)
		if got := b.wait("uid-1"); (got == 0) != c.never || got > c.longest {
			t.Errorf("%s: visited after %s", name, got)
		}
	}
	if got := newBench(t).wait("uid-1"); got != 0 {
		t.Errorf("a pod that nobody knows: visited after %s", got)
	}
}

func repairedOnce(e *Entry) { e.contention = contention{}.withRepair(time.Now()) }

func (b *bench) fails(err error) {
	b.backend.mu.Lock()
	defer b.backend.mu.Unlock()
	b.backend.err = err
}

// wait returns how long it is until a pod is due.
func (b *bench) wait(uid string) time.Duration { return b.schedule().wait(b.Ledger.Of(uid)) }
