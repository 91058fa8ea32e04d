package controllers

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/podreport"
)

// showing is a pod as the watch cache shows it, at a version, with a report on it.
func showing(t *testing.T, version string, r *Report) *corev1.Pod {
	t.Helper()
	pod := askingPod()
	pod.ResourceVersion, pod.Status.Phase = version, corev1.PodRunning
	if r == nil {
		return pod
	}
	b := newWriterBench(t, pod)
	pod = b.mustWrite(t, *r)
	pod.ResourceVersion = version
	return pod
}

func TestDecide(t *testing.T) {
	good, failed, wrong := goodReport(), goodReport(), goodReport()
	failed.Status, failed.Reason, failed.Message = podreport.StatusFailed, podreport.ReasonRedirectFailed, "kernel says no"
	wrong.Status, wrong.Reason, wrong.Message = podreport.StatusFailed, podreport.ReasonInvalidAnnotation, "key: value"
	failedAgain, early, earlyWrong := failed, good, wrong
	failedAgain.Message, early.Hook, earlyWrong.Hook = "kernel says no, otherwise", NRI, NRI
	now := time.Unix(10000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, c := range map[string]struct {
		report  Report
		since   time.Duration // since when it waits
		last    *Report       // what we wrote last
		lastAge time.Duration
		shown   *Report // what the pod says
		phase   corev1.PodPhase
		want    decision
	}{
		"nothing was written":                 {report: good, want: decision{write: true}},
		"the pod says so":                     {report: good, shown: &good, want: decision{shown: true}},
		"the pod says something else":         {report: good, shown: &wrong, want: decision{write: true}},
		"it was written, not shown yet":       {report: good, last: &good, lastAge: time.Second, want: decision{wait: cacheLag - time.Second}},
		"it was written, and is shown":        {report: good, last: &good, lastAge: time.Second, shown: &good, want: decision{shown: true}},
		"the pod still says what was retried": {report: good, last: &wrong, lastAge: time.Second, shown: &good, want: decision{write: true}},
		"the same, with a slow cache":         {report: good, last: &wrong, lastAge: time.Minute, shown: &good, want: decision{write: true}},
		"the cache may be behind":             {report: good, last: &wrong, lastAge: cacheLag - 1, shown: &good, want: decision{write: true}},
		"another agent has written it since":  {report: good, last: &wrong, lastAge: time.Hour, shown: &good, want: decision{write: true}},
		"written long ago, a slow cache":      {report: good, last: &good, lastAge: cacheLag - 1, shown: &wrong, want: decision{wait: 1}},
		"somebody has taken it away":          {report: good, last: &good, lastAge: cacheLag, want: decision{write: true}},
		"a failure goes on":                   {report: failedAgain, last: &failed, lastAge: 10 * time.Second, shown: &failed, want: decision{wait: 20 * time.Second}},
		"a failure goes on for long":          {report: failedAgain, last: &failed, lastAge: failurePause, shown: &failed, want: decision{write: true}},
		"a failure that the pod shows":        {report: failed, last: &failed, lastAge: 10 * time.Second, shown: &failed, want: decision{shown: true}},
		"another failure":                     {report: failed, last: &wrong, lastAge: 10 * time.Second, shown: &wrong, want: decision{write: true}},
		"another mistake of the owner":        {report: wrong, last: &failed, lastAge: 10 * time.Second, shown: &failed, want: decision{write: true}},
		"good news after a failure":           {report: good, last: &failed, lastAge: time.Second, shown: &failed, want: decision{write: true}},
		"good news of a pod that starts":      {report: early, phase: corev1.PodPending, want: decision{wait: startPoll}},
		"good news that waited":               {report: early, phase: corev1.PodPending, since: startPause - time.Millisecond, want: decision{wait: time.Millisecond}},
		"good news that waited long enough":   {report: early, phase: corev1.PodPending, since: startPause, want: decision{write: true}},
		"good news of a pod that runs":        {report: early, phase: corev1.PodRunning, want: decision{write: true}},
		"good news found by the watch":        {report: good, phase: corev1.PodPending, want: decision{write: true}},
		"good news at last":                   {report: early, phase: corev1.PodPending, shown: &failed, want: decision{write: true}},
		"bad news of a pod that starts":       {report: earlyWrong, phase: corev1.PodPending, want: decision{write: true}},
	} {
		t.Run(name, func(t *testing.T) {
			var last written
			if c.last != nil {
				last = written{report: *c.last, at: ago(c.lastAge)}
			}
			shown := showing(t, "8", c.shown)
			if c.phase != "" {
				shown.Status.Phase = c.phase
			}
			if got := decide(queued{report: c.report, since: ago(c.since)}, last, shown, false, now); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// What was found on a pod says nothing of a cache that is behind.
func TestDecide_reportFoundOnThePod_isNoWriteOfOurs(t *testing.T) {
	good, bad := goodReport(), goodReport()
	bad.Status, bad.Reason = podreport.StatusFailed, podreport.ReasonRedirectFailed
	if got := decide(queued{report: good}, written{report: bad, version: "8"}, showing(t, "9", &good), false, time.Unix(10000, 0)); got != (decision{shown: true}) {
		t.Errorf("got %+v", got)
	}
}

// The kubelet gives conditions as they were when it last changed the status itself: a report must not be written again and again.
func TestDecide_conditionsStayBehind_annotationsAreEnough(t *testing.T) {
	good, bad, before := goodReport(), goodReport(), goodReport()
	bad.Status, bad.Reason = podreport.StatusFailed, podreport.ReasonRedirectFailed
	now := time.Unix(10000, 0)
	pod := showing(t, "9", &good)
	pod.Status.Conditions = showing(t, "9", &bad).Status.Conditions
	wrote := written{report: good, at: now.Add(-time.Hour)}
	if got := decide(queued{report: good}, wrote, pod, true, now); got != (decision{shown: true}) {
		t.Errorf("an old condition: %+v", got)
	}
	if got := decide(queued{report: good}, wrote, pod, false, now); !got.write {
		t.Errorf("the same by the API server: %+v", got)
	}
	if got := decide(queued{report: good}, written{}, pod, true, now); !got.write {
		t.Errorf("nothing was written by this agent: %+v", got)
	}
	before.SpecHash = "of another agent"
	if got := decide(queued{report: good}, wrote, showing(t, "9", &before), true, now); !got.write {
		t.Errorf("another agent's report: %+v", got)
	}
}

// The version that a patch makes has the report: a check of that version is not queued.
func TestWriter_versionOfThePatch_isNotReadAgain(t *testing.T) {
	b := newWriterBench(t, askingPod())
	r := goodReport()
	r.PodVersion = b.mustWrite(t, r).ResourceVersion
	if b.Report(r); r.PodVersion == "" || b.queue.Len() != 0 {
		t.Errorf("version %q, %d pods are queued", r.PodVersion, b.queue.Len())
	}
}

// A pod that fails for a moment: good, bad, good again, while the cache shows the first all the time.
func TestWriter_cacheLags_lastReportWins(t *testing.T) {
	good, bad := goodReport(), goodReport()
	bad.Status, bad.Reason = podreport.StatusFailed, podreport.ReasonRedirectFailed
	b := newWriterBench(t, askingPod())
	stale := b.mustWrite(t, good)
	b.Writer.pods = &fakePods{pod: stale}
	b.now = b.now.Add(time.Minute)
	for _, r := range []Report{bad, good} {
		b.now = b.now.Add(time.Second)
		b.mustWrite(t, r)
	}
	if got := b.mustWrite(t, good); got.Annotations[podreport.KeyStatus] != string(podreport.StatusInitialized) || b.patches != 3 {
		t.Errorf("status %q after %d patches", got.Annotations[podreport.KeyStatus], b.patches)
	}
}
