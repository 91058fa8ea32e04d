package controllers

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/podreport"
)

// cacheLag is how long the watch cache may show a pod as it was before our last patch: after a cut watch, half a minute.
const cacheLag = 30 * time.Second

// failurePause is the time between two reports of a pod that cannot be programmed; their messages may differ from try to try. Each
// annotation that is written makes the kubelet try again at once, without its back-off.
const failurePause = 30 * time.Second

// startPause is how long the first success report of a starting pod may be delayed. It is not needed before the pod's containers
// run, and writing it makes the kubelet look at the pod again, which slows a node that starts many pods.
const startPause = 10 * time.Second

// startPoll is the time between two checks whether a starting pod runs or has ended.
const startPoll = time.Second

// queued is a report, and the time since when it has waited.
type queued struct {
	report Report
	since  time.Time
}

// written is the last report on a pod that is known: the report, the pod's resource version that has it, and when this process wrote it. If it was
// found on the pod, at is zero. The zero value means none.
type written struct {
	report  Report
	version string
	at      time.Time
}

// decision is what to do with a report. The zero value drops it.
type decision struct {
	write bool
	wait  time.Duration // then decide again
	shown bool          // the pod has it: it is dropped
}

// decide returns what to do with a report:
//
//   - A report is dropped if the pod in the cache shows it, unless this process wrote another one last: the cache may be behind.
//   - Of a report that this process wrote last only the annotations have to be there, if conditions in the cache stay behind (see Writer.Lags).
//   - A report that this process wrote last waits until the cache shows it, and for cacheLag at most.
//   - A repeated failure, and a success report of a pod that is still starting, wait.
//   - Everything else is written.
func decide(q queued, last written, shown *corev1.Pod, lags bool, now time.Time) decision {
	age, wrote := now.Sub(last.at), !last.at.IsZero()
	if wrote && !q.report.sameAs(last.report) {
		if q.report.repeats() && last.report.Reason == q.report.Reason && age < failurePause {
			return decision{wait: failurePause - age}
		}
		return decision{write: true}
	}
	if q.report.shownOn(shown) || lags && wrote && q.report.annotatedOn(shown) {
		return decision{shown: true}
	}
	if wrote && age < cacheLag {
		return decision{wait: cacheLag - age}
	}
	if wait := min(startPause-now.Sub(q.since), startPoll); wait > 0 && !wrote && q.mayWait(shown) {
		return decision{wait: wait}
	}
	return decision{write: true}
}

// mayWait reports whether the report may be delayed: it is a success report, by an early hook, of a pod that is still starting.
func (q queued) mayWait(pod *corev1.Pod) bool {
	pending := pod.Status.Phase == corev1.PodPending || pod.Status.Phase == ""
	return q.report.Hook.early() && pending && q.report.Status == podreport.StatusInitialized && pod.Annotations[podreport.KeyStatus] == ""
}

// repeats reports whether the report is of a kind that may come with another text each time.
func (r Report) repeats() bool {
	return r.Reason == podreport.ReasonRedirectFailed || r.Reason == podreport.ReasonContended || r.Reason == podreport.ReasonPreempted
}
