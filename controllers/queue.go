package controllers

import (
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/internal/podnet"
)

// Bounds of the wait after a failure.
const (
	firstBackOff = 20 * time.Millisecond
	lastBackOff  = 15 * time.Second
)

// Bounds of the mean wait between two searches for a sandbox.
const (
	firstDelay = 40 * time.Millisecond
	lastDelay  = 5 * time.Second
)

// How many pods are visited at once. Of those whose visits began within the last longVisit there are fewer: one whose check is due, since to
// wake several threads for checks of 0.2 ms costs more than the checks, and some that have changed.
const (
	mostVisits  = 32
	mostBusy    = 4 // of pods whose kernel did not answer the last time
	mostChanged = 4
	mostLong    = 20 // of changed pods whose visits last longer than longVisit: with mostChanged, eight stay for checks
	longVisit   = 50 * time.Millisecond
)

// kernelLimit is how long a visit works in the kernel. Once the kernel did not answer in that time, it is ensureTimeout.
const kernelLimit = 1500 * time.Millisecond

// backOff has random waits, whose bound doubles with each failure of an item.
func backOff[T comparable]() workqueue.TypedRateLimiter[T] {
	return jitter.Limiter[T]{Bounds: workqueue.NewTypedItemExponentialFailureRateLimiter[T](firstBackOff, lastBackOff)}
}

// queue holds each pod once, with the time when it is due. It also remembers what the next visit has to know of the last ones. The visits
// of a pod whose namespace keeps the kernel busy hold up nobody: they are short at first, then few at once and far apart.
type queue struct {
	priorityqueue.PriorityQueue[reconcile.Request]
	begun map[Hook]chan struct{} // each has room for the visits that began within longVisit
	long  map[Hook]*atomic.Int32 // counts the visits that last longer than that
	busy  chan struct{}          // has room for the visits of pods whose kernel did not answer

	mu    sync.Mutex
	stuck map[types.NamespacedName]stuck
}

// stuck remembers the last, unsuccessful visit of the pod with a UID: a later pod of the same name starts anew.
type stuck struct {
	uid    types.UID
	absent time.Time // since when its sandbox has not been there
	busy   time.Time // the kernel did not answer: when it is asked again
}

func newQueue() *queue {
	return &queue{
		PriorityQueue: priorityqueue.New("pods", func(o *priorityqueue.Opts[reconcile.Request]) { o.RateLimiter = backOff[reconcile.Request]() }),
		begun:         map[Hook]chan struct{}{Watch: make(chan struct{}, mostChanged), Verify: make(chan struct{}, 1)},
		long:          map[Hook]*atomic.Int32{Watch: {}, Verify: {}},
		busy:          make(chan struct{}, mostBusy), stuck: map[types.NamespacedName]stuck{},
	}
}

// options make a controller work on the queue.
func (q *queue) options() controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: mostVisits,
		NewQueue: func(string, workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
			return q.PriorityQueue
		},
	}
}

// due makes a pod due for a check after a while.
func (q *queue) due(s podnet.Sandbox, wait time.Duration) {
	q.AddWithOpts(priorityqueue.AddOpts{After: wait, Priority: new(handler.LowPriority)},
		reconcile.Request{NamespacedName: types.NamespacedName{Namespace: s.Namespace, Name: s.Name}})
}

// now makes a pod due now, as a change of it does.
func (q *queue) now(s podnet.Sandbox) {
	q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: s.Namespace, Name: s.Name}})
}

// begin waits until a visit may begin, and returns what is to be called when it has ended, and how long it may wait for the kernel. If the
// visit has to come later, it returns how much later instead: the kernel did not answer the last one, or too many changes take long.
func (q *queue) begin(pod *corev1.Pod, as Hook) (end func(), limit, wait time.Duration) {
	q.mu.Lock()
	again := q.of(pod).busy
	q.mu.Unlock()
	if again.IsZero() {
		return q.beginUsual(as)
	}
	if wait = time.Until(again); wait > 0 {
		return nil, 0, wait
	}
	select {
	case q.busy <- struct{}{}:
		return func() { <-q.busy }, ensureTimeout, 0
	default:
		return nil, 0, jitter.Full(lastDelay)
	}
}

// beginUsual is begin for a pod whose kernel answers. Changes go before checks, and must not have all workers: a runtime that hangs keeps each
// for the whole time of its visit.
func (q *queue) beginUsual(as Hook) (end func(), limit, wait time.Duration) {
	q.begun[as] <- struct{}{}
	leave := sync.OnceFunc(func() { <-q.begun[as] })
	if as == Watch && q.long[as].Load() >= mostLong {
		leave()
		return nil, 0, jitter.Full(kernelLimit)
	}
	late := time.AfterFunc(longVisit, func() { q.long[as].Add(1); leave() })
	return func() {
		if !late.Stop() {
			q.long[as].Add(-1)
		}
		leave()
	}, kernelLimit, 0
}

// of returns what is remembered of a pod. The caller holds mu.
func (q *queue) of(pod *corev1.Pod) stuck {
	if s := q.stuck[client.ObjectKeyFromObject(pod)]; s.uid == pod.UID {
		return s
	}
	return stuck{}
}

// forget drops what is remembered of a name.
func (q *queue) forget(pod types.NamespacedName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.stuck, pod)
}

// unanswered remembers that the kernel did not answer for a pod. It is left alone for a while, whatever changes.
func (q *queue) unanswered(pod *corev1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stuck[client.ObjectKeyFromObject(pod)] = stuck{uid: pod.UID, busy: time.Now().Add(jitter.Full(lastBackOff))}
}

// absent returns how long to wait before a pod's sandbox is looked for again: two fifths of the time that the pod has waited, at most, and
// between the bounds on average: many searches a second for a pod that was scheduled a moment ago, later one every few seconds.
func (q *queue) absent(pod *corev1.Pod) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	now, since := time.Now(), q.of(pod).absent
	if since.IsZero() {
		since = now
		q.stuck[client.ObjectKeyFromObject(pod)] = stuck{uid: pod.UID, absent: now}
	}
	return jitter.Full(2 * min(max(now.Sub(since)/5, firstDelay), lastDelay))
}

// ensureTimeout bounds one call of Ensure, with the runtime's and the kernel's answers.
const ensureTimeout = 10 * time.Second
