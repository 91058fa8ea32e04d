package controllers

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

// writers is the number of workers that write reports.
const writers = 4

// Writer writes reports to pods:
//
//   - Report keeps the newest report of each pod and queues the pod;
//   - a worker reads the pod and decides whether to write the report, drop it, or delay it;
//   - it writes annotations and condition in one patch of pods/status, which fails on a pod with another UID;
//   - some reports also become an event on the pod; what could not be written is tried again with back-off.
type Writer struct {
	// Failed is called with each report of a failure that a pod has now, and not with its repetitions. It must not wait, and may be nil.
	Failed func(Report)

	// Away reports whether the API server is known to be away. It may be nil.
	Away func() bool
	// Lags reports whether conditions of pods in the cache may stay as they were for as long as nothing else changes in the pod's status: the kubelet
	// gives such. It may be nil.
	Lags func() bool

	client   client.StatusClient
	pods     Pods
	recorder events.EventRecorder
	now      func() time.Time

	queue workqueue.TypedRateLimitingInterface[string]
	mu    sync.Mutex
	next  map[string]queued
	last  map[string]written // by pod UID
}

// maxLast bounds Writer.last: nothing reports the end of a pod that asked and got no rules. Of a pod that is not in it, the cache decides.
const maxLast = 1024

// NewWriter returns a Writer, which does nothing until Start is called.
func NewWriter(c client.StatusClient, pods Pods, recorder events.EventRecorder) *Writer {
	return &Writer{
		client: c, pods: pods, recorder: recorder, now: time.Now,
		queue: workqueue.NewTypedRateLimitingQueue(backOff[string]()),
		next:  map[string]queued{}, last: map[string]written{},
	}
}

// Report queues a report and returns at once. Of two reports that say the same the first stays: its hook did the work. A report that
// this version of the pod is known to have is dropped: most checks of a pod's rules end with one.
func (w *Writer) Report(r Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	waiting, ok := w.next[r.Sandbox.UID]
	if has := w.last[r.Sandbox.UID]; !ok && r.PodVersion != "" && has.version == r.PodVersion && r.sameAs(has.report) {
		return
	}
	if !ok || !r.sameAs(waiting.report) {
		w.next[r.Sandbox.UID] = queued{report: r, since: w.now()}
	}
	w.queue.Add(r.Sandbox.UID)
}

// Start writes reports until ctx ends. It is a manager.Runnable.
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
		if logger := log.FromContext(ctx).WithValues("pod", q.report.Sandbox.Pod(), "podUID", uid); w.Away != nil && w.Away() { // the outage is logged once
			logger.V(1).Info("status not written", "reason", err.Error())
		} else {
			logger.Error(err, "status not written")
		}
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

// handle writes a report, drops it, or returns how long to wait before it is handled again.
func (w *Writer) handle(ctx context.Context, q queued) (wait time.Duration, err error) {
	pod, err := w.pods.Pod(ctx, q.report.Sandbox)
	if errors.Is(err, podnet.ErrNoPod) {
		w.Forget(q.report.Sandbox.UID)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read pod: %w", err)
	}
	w.mu.Lock()
	last := w.last[q.report.Sandbox.UID]
	w.mu.Unlock()
	switch d := decide(q, last, pod, w.Lags != nil && w.Lags(), w.now()); {
	case d.write:
		return 0, w.write(ctx, q.report, pod)
	case d.wait > 0:
		return d.wait, nil
	case last.at.IsZero():
		last = written{report: q.report, version: pod.ResourceVersion}
	case d.shown:
		last.version = pod.ResourceVersion
	}
	w.remember(last)
	return 0, nil
}

func (w *Writer) write(ctx context.Context, r Report, pod *corev1.Pod) error {
	data, err := r.patch(pod, w.now())
	if err != nil {
		return err
	}
	made := &metav1.PartialObjectMetadata{ // the answer need not be the whole pod
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
	}
	err = w.client.Status().Patch(ctx, made, client.RawPatch(types.StrategicMergePatchType, data))
	if apierrors.IsNotFound(err) || isStatic(pod) && apierrors.IsInvalid(err) { // the mirror is of another pod, or not there yet
		w.Forget(r.Sandbox.UID)
		return nil
	}
	if err != nil { // a conflict as well: the next read of the pod shows whether it has another UID now
		w.remember(written{report: Report{Sandbox: r.Sandbox}, at: w.now()}) // it may have been carried out: whatever comes next is written
		return fmt.Errorf("patch pods/status: %w", err)
	}
	w.remember(written{report: r, version: made.ResourceVersion, at: w.now()})
	log.FromContext(ctx).V(1).Info("status written", "pod", r.Sandbox.Pod(), "podUID", r.Sandbox.UID, "sandbox", r.Sandbox.ID, "reason", r.Reason)
	w.recordStatus(r, pod)
	w.recordNotes(r, pod)
	return nil
}

// Event makes an event of a pod: a warning, unless it says which ports are captured. The recorder counts events that differ in nothing but
// their words as one, and keeps the words of the first. So each list of ports is an action of its own, which kubectl does not show.
func (w *Writer) Event(s podnet.Sandbox, reason, message string) {
	if reason == podreport.ReasonListening {
		w.event(s, corev1.EventTypeNormal, reason, distinctAction("Redirect", message), message)
		return
	}
	w.event(s, corev1.EventTypeWarning, reason, "Redirect", message)
}

// ProxyEvent makes a warning of a pod's proxy. Each cause is an action of its own, as for Event. What follows a semicolon, such as the last
// words of a log, does not make another cause.
func (w *Writer) ProxyEvent(s podnet.Sandbox, reason, message string) {
	cause, _, _ := strings.Cut(message, ";")
	w.event(s, corev1.EventTypeWarning, reason, distinctAction("Proxy", cause), message)
}

func distinctAction(action, text string) string {
	return fmt.Sprintf("%s-%08x", action, crc32.ChecksumIEEE([]byte(text)))
}

func (w *Writer) event(s podnet.Sandbox, kind, reason, action, message string) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, UID: types.UID(s.UID)}}
	w.recorder.Eventf(pod, nil, kind, reason, action, "%s", truncate(message))
}

// recordStatus makes the event of a report that was just written. pod is as it was: what it said already is no event.
func (w *Writer) recordStatus(r Report, pod *corev1.Pod) {
	reason := map[string]string{podreport.ReasonContended: podreport.ReasonRulesContended, podreport.ReasonPreempted: podreport.ReasonRulesPreempted}[r.Reason]
	c := findCondition(pod)
	switch {
	case reason != "" && c != nil && c.Reason == r.Reason && c.Message == truncate(r.Message):
	case reason != "":
		w.recorder.Eventf(pod, nil, corev1.EventTypeWarning, reason, "Redirect", "%s", truncate(r.Message))
	case r.Status == podreport.StatusFailed:
		w.recorder.Eventf(pod, nil, corev1.EventTypeWarning, r.Reason, "Redirect", "%s", truncate(r.Message))
	case r.Event:
		w.recorder.Eventf(pod, nil, corev1.EventTypeNormal, r.Reason, "Redirect", "%s", truncate(r.Message))
	}
}

// remember stores the report that a pod has now.
func (w *Writer) remember(now written) {
	w.mu.Lock()
	defer w.mu.Unlock()
	uid := now.report.Sandbox.UID
	if w.Failed != nil && now.report.Status == podreport.StatusFailed && !now.report.sameAs(w.last[uid].report) {
		w.Failed(now.report)
	}
	if _, known := w.last[uid]; !known && len(w.last) >= maxLast {
		clear(w.last)
	}
	w.last[uid] = now
}

// Forget drops what is remembered of a deleted pod. A report of it that is still queued is dropped when a worker takes it.
func (w *Writer) Forget(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.last, uid)
}

// recordNotes makes an event of each note that the pod did not have. before is the pod as it was. An unchanged note about foreign rules makes none,
// whatever else has changed.
func (w *Writer) recordNotes(r Report, before *corev1.Pod) {
	said, ok := podreport.DetailsOn(before)
	if ok && said.Notes == truncate(r.Notes) {
		return
	}
	known := strings.Split(said.Notes, "\n")
	for note := range strings.Lines(r.Notes) {
		note, reason := strings.TrimSpace(note), podreport.ReasonNote
		if strings.HasPrefix(note, foreignNote) {
			if reason = podreport.ReasonRulesPreempted; ok && slices.Contains(known, note) {
				continue
			}
		}
		w.recorder.Eventf(before, nil, corev1.EventTypeWarning, reason, "Redirect", "%s", truncate(note))
	}
}
