package controllers

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// cacheLag is how long the watch cache may show a pod as it was before our last patch.
const cacheLag = 5 * time.Second

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

// written is the last report that was written on a pod: when, and the pod's resource versions before (version) and after (made) the
// patch. The zero value means none.
type written struct {
	report        Report
	at            time.Time
	version, made string
}

// before reports whether a resource version is older than the patch. Versions that are decimal numbers are compared; of others
// only the version that was patched is known to be older.
func (w written) before(version string) bool {
	if version == w.version {
		return true
	}
	shown, err1 := strconv.ParseUint(version, 10, 64)
	made, err2 := strconv.ParseUint(w.made, 10, 64)
	return err1 == nil && err2 == nil && shown < made
}

// decision is what to do with a report. The zero value drops it.
type decision struct {
	write bool
	wait  time.Duration // then decide again
}

// decide returns what to do with a report:
//
//   - A report that the pod already has is dropped. While shown may be older than our last patch, that patch counts as what the pod has.
//   - A repeated failure, and a success report of a pod that is still starting, wait.
//   - Everything else is written.
func decide(q queued, last written, shown *corev1.Pod, now time.Time) decision {
	age := now.Sub(last.at)
	wrote := !last.at.IsZero()
	behind := wrote && (age < cacheLag || last.before(shown.ResourceVersion))
	if behind && last.report.sameAs(q.report) || !behind && q.report.shownOn(shown) {
		return decision{}
	}
	if wrote && q.report.repeats() && last.report.Reason == q.report.Reason && age < failurePause {
		return decision{wait: failurePause - age}
	}
	if wait := min(startPause-now.Sub(q.since), startPoll); wait > 0 && !wrote && q.mayWait(shown) {
		return decision{wait: wait}
	}
	return decision{write: true}
}

// mayWait reports whether the report may be delayed: it is a success report, by an early entrance, of a pod that is still starting.
func (q queued) mayWait(pod *corev1.Pod) bool {
	pending := pod.Status.Phase == corev1.PodPending || pod.Status.Phase == ""
	return q.report.Entrance.early() && pending && q.report.Status == StatusInitialized && pod.Annotations[KeyStatus] == ""
}

// repeats reports whether the report is of a kind that may come with another text each time.
func (r Report) repeats() bool {
	return r.Reason == ReasonRedirectFailed || r.Reason == ReasonContended || r.Reason == ReasonPreempted
}
