package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

// writerBench is a Writer on a fake API server that counts patches and refuses a given number of them.
type writerBench struct {
	*Writer
	client  client.Client
	events  *events.FakeRecorder
	patches int
	refuse  int
	because error    // of refusals
	during  func()   // called within a patch
	sent    []string // the patches
	now     time.Time
}

func newWriterBench(t *testing.T, pods ...client.Object) *writerBench {
	t.Helper()
	b := &writerBench{events: events.NewFakeRecorder(10), now: time.Unix(1000, 0), because: errors.New("the API server says no")}
	b.client = fake.NewClientBuilder().WithObjects(pods...).WithStatusSubresource(pods...).WithInterceptorFuncs(interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, p client.Patch, o ...client.SubResourcePatchOption) error {
			b.patches++
			if b.during != nil {
				b.during()
			}
			data, err := p.Data(obj)
			b.sent = append(b.sent, string(data))
			if err != nil {
				return err
			}
			if b.refuse > 0 {
				b.refuse--
				return b.because
			}
			// A real API server takes annotations through the status subresource, the fake one only through the pod itself.
			if err := c.Patch(ctx, obj.DeepCopyObject().(client.Object), p); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, obj, p, o...)
		},
	}).Build()
	b.Writer = NewWriter(b.client, Reader{Cache: b.client, Live: b.client}, b.events)
	b.Writer.now = func() time.Time { return b.now }
	return b
}

func (b *writerBench) mustWrite(t *testing.T, r Report) *corev1.Pod {
	t.Helper()
	if _, err := b.handle(t.Context(), queued{report: r, since: b.now}); err != nil {
		t.Fatal(err)
	}
	var pod corev1.Pod
	if err := b.client.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "cart"}, &pod); err != nil {
		t.Fatal(err)
	}
	return &pod
}

func goodReport() Report {
	return Report{
		Sandbox: podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "uid-1", ID: "sandbox-1"},
		Status:  podreport.StatusInitialized, Reason: podreport.ReasonInitialized, Message: "ok", Hook: Watch, Backend: "fake", SpecHash: "1234",
	}
}

func TestWriter_report_isOnePatch(t *testing.T) {
	pod := askingPod()
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	b := newWriterBench(t, pod)
	got := b.mustWrite(t, goodReport())
	var said podreport.Details
	if err := json.Unmarshal([]byte(got.Annotations[podreport.KeyDetails]), &said); err != nil {
		t.Fatal(err)
	}
	want := podreport.Details{Sandbox: "sandbox-1", Hook: string(Watch), Backend: "fake", SpecHash: "1234", Time: b.now.UTC(), Message: "ok"}
	if said != want || got.Annotations[podreport.KeyStatus] != "initialized" {
		t.Errorf("said %+v, status %q", said, got.Annotations[podreport.KeyStatus])
	}
	c := findCondition(got)
	if c == nil || c.Status != corev1.ConditionTrue || len(got.Status.Conditions) != 2 {
		t.Errorf("conditions %+v", got.Status.Conditions)
	}
	b.mustWrite(t, goodReport())
	b.now = b.now.Add(time.Hour) // the cache has caught up: what the pod says decides
	again := goodReport()
	again.Hook = Verify
	b.mustWrite(t, again)
	if b.patches != 1 {
		t.Errorf("%d patches for one report", b.patches)
	}
}

func TestWriter_reportTakenAway_isWrittenAgain(t *testing.T) {
	b := newWriterBench(t, askingPod())
	pod := b.mustWrite(t, goodReport())
	delete(pod.Annotations, podreport.KeyStatus)
	if err := b.client.Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	b.now = b.now.Add(time.Hour)
	if got := b.mustWrite(t, goodReport()); got.Annotations[podreport.KeyStatus] != "initialized" || b.patches != 2 {
		t.Errorf("status %q after %d patches", got.Annotations[podreport.KeyStatus], b.patches)
	}
}

func TestWriter_failure_isAlsoAnEvent(t *testing.T) {
	b := newWriterBench(t, askingPod())
	r := goodReport()
	r.Status, r.Reason, r.Message = podreport.StatusFailed, podreport.ReasonInvalidAnnotation, "key: value "+strings.Repeat("x", 2000)
	got := b.mustWrite(t, r)
	if c := findCondition(got); c == nil || c.Status != corev1.ConditionFalse || len(c.Message) > maxMessage {
		t.Errorf("condition %+v", c)
	}
	select {
	case e := <-b.events.Events:
		if !strings.HasPrefix(e, "Warning InvalidAnnotation key: value") || len(e) > 1100 {
			t.Errorf("event %q", e)
		}
	default:
		t.Error("no event")
	}
	b.mustWrite(t, r)
	if len(b.events.Events) != 0 {
		t.Error("the same failure became two events")
	}
}

func TestWriter_sameCondition_keepsTransitionTime(t *testing.T) {
	b := newWriterBench(t, askingPod())
	first := findCondition(b.mustWrite(t, goodReport())).LastTransitionTime
	b.now = b.now.Add(time.Minute)
	other := goodReport()
	other.Sandbox.ID, other.Message = "sandbox-2", "made anew"
	if got := findCondition(b.mustWrite(t, other)); !got.LastTransitionTime.Equal(&first) || got.Message != "made anew" {
		t.Errorf("condition %+v", got)
	}
	other.Status, other.Reason = podreport.StatusFailed, podreport.ReasonRedirectFailed
	if got := findCondition(b.mustWrite(t, other)); got.LastTransitionTime.Equal(&first) {
		t.Errorf("condition %+v", got)
	}
}

func TestWriter_otherPodOfTheName_isNotWrittenTo(t *testing.T) {
	b := newWriterBench(t, askingPod())
	r := goodReport()
	r.Sandbox.UID = "uid-0"
	if got := b.mustWrite(t, r); got.Annotations[podreport.KeyStatus] != "" || b.patches != 0 {
		t.Errorf("annotations %v", got.Annotations)
	}
}

func TestWriter_twoEqualReports_writeTheFirst(t *testing.T) {
	b := newWriterBench(t, askingPod())
	first, second := goodReport(), goodReport()
	first.Hook, second.Sandbox.Nameservers = NRI, "10.96.0.10"
	b.Report(first)
	b.Report(second)
	if got := b.next["uid-1"].report; got != first {
		t.Errorf("%+v is to be written", got)
	}
	second.Message = "another"
	b.Report(second)
	if got := b.next["uid-1"].report; got != second {
		t.Errorf("%+v is to be written", got)
	}
}

func TestWriter_patchFails_isTriedAgain(t *testing.T) {
	b := newWriterBench(t, askingPod())
	b.refuse = 2
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() { stopped <- b.Start(ctx) }()
	b.Report(goodReport())
	deadline := time.After(10 * time.Second)
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		var pod corev1.Pod
		if err := b.client.Get(ctx, client.ObjectKey{Namespace: "shop", Name: "cart"}, &pod); err != nil {
			t.Fatal(err)
		}
		if pod.Annotations[podreport.KeyStatus] == "initialized" {
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("never written")
		}
	}
	cancel()
	if err := <-stopped; err != nil || b.patches != 3 {
		t.Errorf("%d patches, error %v", b.patches, err)
	}
}

// Every write of an annotation has the kubelet try a pod again at once: a write a try would be a loop.
func TestWriter_failureGoesOn_isNotWrittenEachTime(t *testing.T) {
	b := newWriterBench(t, askingPod())
	r := goodReport()
	r.Status, r.Reason, r.Message = podreport.StatusFailed, podreport.ReasonInvalidAnnotation, "key: value"
	b.mustWrite(t, r)
	r.Sandbox.ID, r.Sandbox.NetNS = "sandbox-2", "/netns/2"
	b.mustWrite(t, r)
	b.now = b.now.Add(time.Hour)
	b.mustWrite(t, r)
	if b.patches != 1 {
		t.Errorf("%d patches for one mistake", b.patches)
	}
	r.Reason, r.Message = podreport.ReasonRedirectFailed, "enter /netns/2"
	if b.mustWrite(t, r); b.patches != 2 {
		t.Errorf("%d patches for two mistakes", b.patches)
	}
}

// Nothing tells the writer that a pod which got no rules is gone.
func TestWriter_manyPods_memoryIsBounded(t *testing.T) {
	b := newWriterBench(t, askingPod())
	for i := range maxLast {
		b.last[strconv.Itoa(i)] = written{}
	}
	b.mustWrite(t, goodReport())
	if len(b.last) != 1 {
		t.Errorf("%d pods are remembered, want the last one", len(b.last))
	}
	for i := range maxLast - 1 {
		b.last[strconv.Itoa(i)] = written{}
	}
	b.now = b.now.Add(cacheLag)
	if b.mustWrite(t, goodReport()); len(b.last) != maxLast {
		t.Errorf("%d pods are remembered, want all: none is new", len(b.last))
	}
}

// The API server has carried out a patch, its answer is lost, and the report before it is true again.
func TestWriter_answerLost_nextReportIsWritten(t *testing.T) {
	b := newWriterBench(t, askingPod())
	b.mustWrite(t, goodReport())
	b.now = b.now.Add(10 * time.Second)
	b.refuse, b.because = 1, errors.New("connection reset by peer")
	b.during = func() { // carried out
		pod := askingPod()
		if err := b.client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			t.Error(err)
		}
		pod.Annotations[podreport.KeyStatus] = string(podreport.StatusFailed)
		if err := b.client.Update(t.Context(), pod); err != nil {
			t.Error(err)
		}
	}
	wrong := goodReport()
	wrong.Status, wrong.Reason, wrong.Message = podreport.StatusFailed, podreport.ReasonInvalidAnnotation, "no"
	if _, err := b.handle(t.Context(), queued{report: wrong, since: b.now}); err == nil {
		t.Fatal("no error")
	}
	b.during = nil
	b.now = b.now.Add(time.Second)
	if got := b.mustWrite(t, goodReport()).Annotations[podreport.KeyStatus]; got != string(podreport.StatusInitialized) {
		t.Errorf("the pod says %q", got)
	}
}

// Pods that fail for good take turns, each at its next try: none of their failures is news.
func TestWriter_failuresThatArePassedOn_areNoRepetitions(t *testing.T) {
	b := newWriterBench(t, askingPod())
	var told []string
	b.Failed = func(r Report) { told = append(told, r.Message) }
	failed := goodReport()
	failed.Status, failed.Reason, failed.Message = podreport.StatusFailed, podreport.ReasonInvalidAnnotation, "no"
	for range 10 {
		b.now = b.now.Add(time.Minute)
		b.mustWrite(t, failed)
	}
	if len(told) != 1 {
		t.Errorf("told %q of one failure", told)
	}
	b.last = map[string]written{} // an agent that starts finds it
	b.mustWrite(t, failed)
	b.mustWrite(t, goodReport())
	b.mustWrite(t, failed)
	if len(told) != 3 {
		t.Errorf("told %q, want one more after a start, and one after a success", told)
	}
}
