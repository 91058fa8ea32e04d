package controllers

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"istio-pod-network-controller/internal/podreport"
)

// mustWork has the writer do one piece of work, and gives how many are queued for at once.
func (b *writerBench) mustWork(t *testing.T) (queuedNow int) {
	t.Helper()
	if !b.work(t.Context()) {
		t.Fatal("the writer has stopped")
	}
	return b.queue.Len()
}

// A patch must miss a pod that has taken the name of the one that it is about.
func TestPatch_namesThePodsUID(t *testing.T) {
	b := newWriterBench(t, askingPod())
	b.mustWrite(t, goodReport())
	if len(b.sent) != 1 || !strings.Contains(b.sent[0], `"uid":"uid-1"`) {
		t.Errorf("sent %q", b.sent)
	}
}

func TestWriter_newerReportDuringAPatch_isWrittenToo(t *testing.T) {
	b := newWriterBench(t, askingPod())
	newer := goodReport()
	newer.Sandbox.ID = "sandbox-2"
	b.Report(goodReport())
	b.during = func() {
		b.during = nil
		b.Report(newer)
	}
	if left := b.mustWork(t); left != 1 {
		t.Fatalf("%d pods are queued after the first patch", left)
	}
	b.mustWork(t)
	pod, err := b.pods.Pod(t.Context(), newer.Sandbox)
	if err != nil || !strings.Contains(pod.Annotations[podreport.KeyDetails], "sandbox-2") || len(b.next) != 0 {
		t.Errorf("details %s, error %v, %d reports left", pod.Annotations[podreport.KeyDetails], err, len(b.next))
	}
}

// The API server calls it a conflict, too, if it could not apply a patch in time.
func TestWriter_conflict_isTriedAgain(t *testing.T) {
	b := newWriterBench(t, askingPod())
	b.refuse, b.because = 1, apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "cart", errors.New("changed meanwhile"))
	b.Report(goodReport())
	b.mustWork(t)
	if len(b.next) != 1 || b.queue.NumRequeues("uid-1") != 1 {
		t.Fatalf("%d reports left, %d tries to come", len(b.next), b.queue.NumRequeues("uid-1"))
	}
	b.mustWork(t)
	if b.patches != 2 || len(b.next) != 0 || b.queue.NumRequeues("uid-1") != 0 {
		t.Errorf("%d patches, %d reports left", b.patches, len(b.next))
	}
}

func TestWriter_podIsGone_reportIsDropped(t *testing.T) {
	for name, change := range map[string]func(*writerBench){
		"another pod has its name": func(b *writerBench) { b.Writer.pods = &fakePods{} },
		"it went while it was reported": func(b *writerBench) {
			b.refuse, b.because = 1, apierrors.NewNotFound(schema.GroupResource{}, "cart")
		},
	} {
		b := newWriterBench(t, askingPod())
		b.last["uid-1"] = written{}
		change(b)
		b.Report(goodReport())
		b.mustWork(t)
		if len(b.next) != 0 || len(b.last) != 0 || len(b.events.Events) != 0 || b.queue.NumRequeues("uid-1") != 0 {
			t.Errorf("%s: %d reports to write, %d remembered, %d events", name, len(b.next), len(b.last), len(b.events.Events))
		}
	}
}

func TestWriter_podUnreadable_isTriedAgain(t *testing.T) {
	b := newWriterBench(t, askingPod())
	b.Writer.pods = &fakePods{err: errors.New("no")}
	b.Report(goodReport())
	b.mustWork(t)
	if len(b.next) != 1 || b.queue.NumRequeues("uid-1") != 1 {
		t.Errorf("%d reports left, %d tries to come", len(b.next), b.queue.NumRequeues("uid-1"))
	}
}

func TestWriter_reportWaits_isNotForgotten(t *testing.T) {
	pod := askingPod()
	pod.Status.Phase = corev1.PodPending
	b := newWriterBench(t, pod)
	r := goodReport()
	r.Hook = NRI
	b.Report(r)
	if b.mustWork(t); len(b.next) != 1 || b.patches != 0 {
		t.Errorf("%d reports left after %d patches", len(b.next), b.patches)
	}
}

// A pod that gets no rules has no status that says it had some.
func TestWriter_reportWithoutStatus_removesContradiction(t *testing.T) {
	for status, want := range map[podreport.Status]string{podreport.StatusFailed: "", podreport.StatusInitialized: "", podreport.StatusRemoved: "removed"} {
		pod := askingPod()
		pod.Annotations[podreport.KeyStatus], pod.Annotations[podreport.KeyDetails] = string(status), "{}"
		b := newWriterBench(t, pod)
		r := goodReport()
		r.Status, r.Reason = "", podreport.ReasonNotRequired
		got := b.mustWrite(t, r)
		if _, details := got.Annotations[podreport.KeyDetails]; got.Annotations[podreport.KeyStatus] != want || details != (want != "") {
			t.Errorf("%s: annotations %v", status, got.Annotations)
		}
		if c := findCondition(got); c == nil || c.Status != corev1.ConditionTrue {
			t.Errorf("%s: condition %+v", status, c)
		}
	}
	pod := askingPod()
	pod.Annotations[podreport.KeyStatus] = string(podreport.StatusInitialized)
	r := goodReport()
	r.Status, r.Reason = "", podreport.ReasonSandboxNotReady
	if got := newWriterBench(t, pod).mustWrite(t, r); got.Annotations[podreport.KeyStatus] != string(podreport.StatusInitialized) {
		t.Errorf("a sandbox that is made anew takes the status away: %v", got.Annotations)
	}
}

func TestWriter_reports_whichAreEvents(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Report)
		want   []string
	}{
		"success":   {change: func(*Report) {}},
		"a failure": {change: func(r *Report) { r.Status, r.Reason = podreport.StatusFailed, "Bad" }, want: []string{"Warning Bad ok"}},
		"what the owner asked for": {
			change: func(r *Report) { r.Status, r.Reason, r.Event = "", "NotRequired", true }, want: []string{"Normal NotRequired ok"},
		},
		"a pod that did not ask": {change: func(r *Report) { r.Status, r.Reason = "", "NotRequired" }},
		"settings without effect": {
			change: func(r *Report) { r.Notes = "one\ntwo" }, want: []string{"Warning " + podreport.ReasonNote + " one", "Warning " + podreport.ReasonNote + " two"},
		},
	} {
		b := newWriterBench(t, askingPod())
		r := goodReport()
		c.change(&r)
		b.mustWrite(t, r)
		b.now = b.now.Add(time.Hour)
		b.mustWrite(t, r)
		var got []string
		for len(b.events.Events) > 0 {
			got = append(got, <-b.events.Events)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// Nearly every check of a pod's rules ends with the report that the pod has: only a pod that has changed since is looked at again.
func TestReport_podHasIt_isNotQueued(t *testing.T) {
	for name, c := range map[string]struct {
		between func(*Report) // a report that comes first
		change  func(*Report)
		queued  int
	}{
		"of the same version of the pod": {},
		"of another hook":                {change: func(r *Report) { r.Hook = NRI }},
		"of another version of the pod":  {change: func(r *Report) { r.PodVersion += "0" }, queued: 1},
		"of no version":                  {change: func(r *Report) { r.PodVersion = "" }, queued: 1},
		"that says something else":       {change: func(r *Report) { r.Message = "something else" }, queued: 1},
		"after one that says something else, of a cache that is behind": {between: func(r *Report) { r.Message = "something else" }, queued: 1},
	} {
		b := newWriterBench(t, askingPod())
		r := goodReport()
		r.PodVersion = b.mustWrite(t, r).ResourceVersion
		b.now = b.now.Add(2 * cacheLag)
		b.last = map[string]written{} // an agent that starts
		b.Report(r)
		b.mustWork(t) // it is dropped, and remembered
		if c.between != nil {
			other := r
			c.between(&other)
			b.Report(other)
			b.mustWork(t)
		}
		if c.change != nil {
			c.change(&r)
		}
		if b.Report(r); b.queue.Len() != c.queued {
			t.Errorf("a report %s: %d pods are queued", name, b.queue.Len())
		}
		b.Forget(r.Sandbox.UID)
		if len(b.last) != 0 {
			t.Errorf("a report %s: the one of a deleted pod is remembered", name)
		}
	}
}
