package controllers

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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

func TestWhatIsDoneWithAReport(t *testing.T) {
	good, failed, wrong := goodReport(), goodReport(), goodReport()
	failed.Status, failed.Reason, failed.Message = StatusFailed, ReasonRedirectFailed, "kernel says no"
	wrong.Status, wrong.Reason, wrong.Message = StatusFailed, ReasonInvalidAnnotation, "key: value"
	failedAgain, early, earlyWrong := failed, good, wrong
	failedAgain.Message, early.Entrance, earlyWrong.Entrance = "kernel says no, otherwise", NRI, NRI
	now := time.Unix(10000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, c := range map[string]struct {
		report  Report
		since   time.Duration // since when it waits
		last    *Report       // what we wrote last
		lastAge time.Duration
		shown   *Report // what the pod says
		behind  bool    // the pod is shown as it was before our last patch
		phase   corev1.PodPhase
		want    decision
	}{
		"nothing was written":                 {report: good, want: decision{write: true}},
		"the pod says so":                     {report: good, shown: &good},
		"the pod says something else":         {report: good, shown: &wrong, want: decision{write: true}},
		"it was written, not shown yet":       {report: good, last: &good, lastAge: time.Second},
		"the pod still says what was retried": {report: good, last: &wrong, lastAge: time.Second, shown: &good, behind: true, want: decision{write: true}},
		"the same, with a slow cache":         {report: good, last: &wrong, lastAge: time.Minute, shown: &good, behind: true, want: decision{write: true}},
		"the cache may be behind":             {report: good, last: &wrong, lastAge: cacheLag - 1, shown: &good, want: decision{write: true}},
		"the cache has caught up":             {report: good, last: &wrong, lastAge: cacheLag, shown: &good},
		"written long ago, a slow cache":      {report: good, last: &good, lastAge: time.Minute, shown: &wrong, behind: true},
		"somebody has taken it away":          {report: good, last: &good, lastAge: cacheLag, want: decision{write: true}},
		"a failure goes on":                   {report: failedAgain, last: &failed, lastAge: 10 * time.Second, shown: &failed, want: decision{wait: 20 * time.Second}},
		"a failure goes on for long":          {report: failedAgain, last: &failed, lastAge: failurePause, shown: &failed, want: decision{write: true}},
		"a failure that the pod shows":        {report: failed, last: &failed, lastAge: 10 * time.Second, shown: &failed},
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
				last = written{report: *c.last, at: ago(c.lastAge), version: "7"}
			}
			shown := showing(t, "8", c.shown)
			if c.behind {
				shown.ResourceVersion = "7"
			}
			if c.phase != "" {
				shown.Status.Phase = c.phase
			}
			if got := decide(queued{report: c.report, since: ago(c.since)}, last, shown, now); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// A cut watch shows the pod as it was between the version that was looked at and our patch, for half a minute.
func TestACacheBehindOurPatchIsKnownByItsVersion(t *testing.T) {
	good, bad := goodReport(), goodReport()
	bad.Status, bad.Reason = StatusFailed, ReasonRedirectFailed
	now := time.Unix(10000, 0)
	for version, want := range map[string]bool{"8": true, "9": true, "10": false, "11": false} {
		last := written{report: bad, at: now.Add(-20 * time.Second), version: "8", made: "10"}
		if got := decide(queued{report: good, since: now}, last, showing(t, version, &good), now); got.write != want {
			t.Errorf("version %s: %+v", version, got)
		}
	}
}

// The version that a patch makes is remembered.
func TestTheVersionOfAPatchIsRemembered(t *testing.T) {
	b := newWriterBench(t, askingPod())
	pod := b.mustWrite(t, goodReport())
	if got := b.last["uid-1"].made; got == "" || got != pod.ResourceVersion {
		t.Errorf("got %q, want %q", got, pod.ResourceVersion)
	}
}

// A pod that fails for a moment: good, bad, good again, while the cache shows the first all the time.
func TestTheLastReportWinsOverACacheThatLags(t *testing.T) {
	good, bad := goodReport(), goodReport()
	bad.Status, bad.Reason = StatusFailed, ReasonRedirectFailed
	b := newWriterBench(t, askingPod())
	stale := b.mustWrite(t, good)
	b.Writer.pods = &fakePods{pod: stale}
	b.now = b.now.Add(time.Minute)
	for _, r := range []Report{bad, good} {
		b.now = b.now.Add(time.Second)
		b.mustWrite(t, r)
	}
	if got := b.mustWrite(t, good); got.Annotations[KeyStatus] != string(StatusInitialized) || b.patches != 3 {
		t.Errorf("status %q after %d patches", got.Annotations[KeyStatus], b.patches)
	}
}
