package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/podnet"
)

// cacheLag is how long the watch cache may still show a pod as it was before our last patch.
const cacheLag = 5 * time.Second

// failurePause lies between two reports of a pod that cannot be programmed, whose messages may differ from try to try: the
// annotation that is written has the kubelet try again at once, without its back-off.
const failurePause = 30 * time.Second

// startPause is how long a pod that starts as it should may wait for its first report. Nobody needs it before the pod's
// containers run; the writing, and the kubelet's next look at the pod, would only hold up a node that starts many.
const startPause = 10 * time.Second

// startLook lies between two looks whether a pod that starts runs, or has ended already.
const startLook = time.Second

// writers is how many patches are under way at once.
const writers = 4

// Writer tells pods' owners how it went:
//
//   - Report keeps the newest report of each pod and queues the pod;
//   - a worker drops a report that the pod already shows, and lets good news of a pod that still starts wait, and those of a
//     failure that goes on;
//   - it writes annotations and condition in one patch of pods/status;
//   - a failure also becomes an event on the pod; what could not be written is tried again with back-off.
type Writer struct {
	client   client.StatusClient
	pods     Pods
	recorder events.EventRecorder
	now      func() time.Time

	queue workqueue.TypedRateLimitingInterface[string]
	mu    sync.Mutex
	next  map[string]queued
	last  map[string]written
}

// queued is what a pod is to be told, and since when.
type queued struct {
	report Report
	since  time.Time
}

// written is what a pod was last told, and when.
type written struct {
	report Report
	at     time.Time
}

// NewWriter makes a Writer that has to be started.
func NewWriter(c client.StatusClient, pods Pods, recorder events.EventRecorder) *Writer {
	return &Writer{
		client: c, pods: pods, recorder: recorder, now: time.Now,
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
		next:  map[string]queued{}, last: map[string]written{},
	}
}

// Report queues a report and returns at once. Of two that say the same the first one stays: it is whose work it was.
func (w *Writer) Report(r Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if waiting, ok := w.next[r.Sandbox.UID]; !ok || !waiting.report.says(r) {
		w.next[r.Sandbox.UID] = queued{report: r, since: w.now()}
	}
	w.queue.Add(r.Sandbox.UID)
}

// Start works until ctx ends. It is a manager.Runnable.
func (w *Writer) Start(ctx context.Context) error {
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for w.work(ctx) {
			}
		})
	}
	<-ctx.Done()
	w.queue.ShutDown()
	wg.Wait()
	return nil
}

func (w *Writer) work(ctx context.Context) bool {
	uid, stop := w.queue.Get()
	if stop {
		return false
	}
	defer w.queue.Done(uid)
	w.mu.Lock()
	q, ok := w.next[uid]
	w.mu.Unlock()
	if !ok {
		return true
	}
	wait, err := w.handle(ctx, q)
	switch {
	case err != nil:
		log.FromContext(ctx).Error(err, "status not written", "pod", q.report.Sandbox.Pod(), "podUID", uid)
		w.queue.AddRateLimited(uid)
		return true
	case wait > 0:
		w.queue.AddAfter(uid, wait)
		return true
	}
	w.queue.Forget(uid)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next[uid] == q {
		delete(w.next, uid)
	}
	return true
}

// handle writes a report, or tells how long it has to wait for its turn.
func (w *Writer) handle(ctx context.Context, q queued) (wait time.Duration, err error) {
	pod, err := w.pods.Pod(ctx, q.report.Sandbox)
	if isGone(err) {
		w.forget(q.report.Sandbox.UID)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read pod: %w", err)
	}
	if wait := max(w.pause(q.report), w.patience(q, pod)); wait > 0 {
		return wait, nil
	}
	return 0, w.write(ctx, q.report, pod)
}

// patience is for pods that the runtime has told of while it makes them.
func (w *Writer) patience(q queued, pod *corev1.Pod) time.Duration {
	starting := pod.Status.Phase == corev1.PodPending || pod.Status.Phase == ""
	if !q.report.Entrance.early() || !starting || q.report.Status != StatusInitialized || pod.Annotations[KeyStatus] != "" {
		return 0
	}
	return min(startPause-w.now().Sub(q.since), startLook)
}

func (w *Writer) write(ctx context.Context, r Report, pod *corev1.Pod) error {
	if w.told(r) || r.on(pod) {
		return nil
	}
	data, err := r.patch(pod, w.now())
	if err != nil {
		return err
	}
	err = w.client.Status().Patch(ctx, pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, data))
	if isGone(err) {
		w.forget(r.Sandbox.UID)
		return nil
	}
	if err != nil {
		return fmt.Errorf("patch pods/status: %w", err)
	}
	w.remember(r)
	log.FromContext(ctx).V(1).Info("status written", "pod", r.Sandbox.Pod(), "podUID", r.Sandbox.UID, "sandbox", r.Sandbox.ID, "reason", r.Reason)
	if r.Status == StatusFailed {
		w.recorder.Eventf(pod, nil, corev1.EventTypeWarning, r.Reason, "Redirect", "%s", truncate(r.Message))
	}
	return nil
}

// told tells whether the pod was told the same a moment ago, which the cache may not show yet.
func (w *Writer) told(r Report) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, ok := w.last[r.Sandbox.UID]
	return ok && last.report.says(r) && w.now().Sub(last.at) < cacheLag
}

// pause is how long a report has to wait for its turn.
func (w *Writer) pause(r Report) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, ok := w.last[r.Sandbox.UID]
	if !ok || r.Reason != ReasonRedirectFailed || last.report.Reason != r.Reason {
		return 0
	}
	return failurePause - w.now().Sub(last.at)
}

func (w *Writer) remember(r Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	for uid, old := range w.last {
		if now.Sub(old.at) > failurePause {
			delete(w.last, uid)
		}
	}
	w.last[r.Sandbox.UID] = written{report: r, at: now}
}

func (w *Writer) forget(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.last, uid)
}

// isGone tells that the pod is no more, or that another one has its name: a UID that differs is a conflict.
func isGone(err error) bool {
	return errors.Is(err, podnet.ErrNoPod) || apierrors.IsNotFound(err) || apierrors.IsConflict(err)
}
