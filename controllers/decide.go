package controllers

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
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

// queued is what a pod is to be told, and since when.
type queued struct {
	report Report
	since  time.Time
}

// written is what a pod was last told, when, and the versions of the pod that were looked at and made. Its zero value is nothing.
type written struct {
	report        Report
	at            time.Time
	version, made string
}

// before reports whether a version of a pod is one from before the patch. Versions are decimal numbers that grow; of others only
// that which was looked at is known.
func (w written) before(version string) bool {
	if version == w.version {
		return true
	}
	shown, err1 := strconv.ParseUint(version, 10, 64)
	made, err2 := strconv.ParseUint(w.made, 10, 64)
	return err1 == nil && err2 == nil && shown < made
}

// decision is what to do with a report. Its zero value drops it.
type decision struct {
	write bool
	wait  time.Duration // and decide again
}

// decide says what to do with a report:
//
//   - what the pod says already is dropped. While shown may be from before our last patch, that patch is what the pod says;
//   - a failure that goes on, and good news of a pod that still starts, wait for their turn;
//   - everything else is written.
func decide(q queued, last written, shown *corev1.Pod, now time.Time) decision {
	age := now.Sub(last.at)
	wrote := !last.at.IsZero()
	behind := wrote && (age < cacheLag || last.before(shown.ResourceVersion))
	if behind && last.report.says(q.report) || !behind && q.report.on(shown) {
		return decision{}
	}
	if wrote && q.report.Reason == ReasonRedirectFailed && last.report.Reason == q.report.Reason && age < failurePause {
		return decision{wait: failurePause - age}
	}
	if wait := min(startPause-now.Sub(q.since), startLook); wait > 0 && !wrote && q.patient(shown) {
		return decision{wait: wait}
	}
	return decision{write: true}
}

// patient reports whether the report is of success and its pod, of which the runtime told while it made it, still starts.
func (q queued) patient(pod *corev1.Pod) bool {
	starting := pod.Status.Phase == corev1.PodPending || pod.Status.Phase == ""
	return q.report.Entrance.early() && starting && q.report.Status == StatusInitialized && pod.Annotations[KeyStatus] == ""
}
