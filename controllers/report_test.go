package controllers

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/internal/podreport"
)

// A report that its pod does not seem to have is written again with each look, and each time the kubelet starts the pod at once.
func TestWhatWasWrittenIsKnownAgainWhateverItSays(t *testing.T) {
	for name, message := range map[string]string{
		"short":                            "no port",
		"cut between characters":           strings.Repeat("a", 2*maxMessage),
		"cut within a character":           strings.Repeat("a", maxMessage-4) + strings.Repeat("é", 9),
		"cut within a character of four":   strings.Repeat("a", maxMessage-5) + strings.Repeat("😀", 9),
		"bytes that are no characters":     "chain \xff\xfe",
		"many bytes that are no character": strings.Repeat("\xff\xfea", maxMessage),
		"lines, quotes and nothing":        "a\nb\r\"\\\x00\u2028",
	} {
		t.Run(name, func(t *testing.T) {
			r := Report{Status: podreport.StatusFailed, Reason: podreport.ReasonInvalidAnnotation, Message: message, Notes: message}
			data, err := r.patch(&corev1.Pod{}, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			var written struct {
				Metadata metav1.ObjectMeta
				Status   corev1.PodStatus
			}
			if err := json.Unmarshal(data, &written); err != nil {
				t.Fatal(err)
			}
			pod := &corev1.Pod{ObjectMeta: written.Metadata, Status: written.Status}
			if !r.shownOn(pod) {
				t.Error("the report is not known again")
			}
			if said := findCondition(pod).Message; len(said) > maxMessage || !utf8.ValidString(truncate(message)) {
				t.Errorf("%d bytes: %q", len(said), said)
			}
		})
	}
}

// An agent that has just started knows of no repair: it does not write pods anew for that.
func TestARepairByAnEarlierAgentStaysReported(t *testing.T) {
	b := newWriterBench(t, askingPod())
	r := goodReport()
	r.LastRepair = podreport.Repair{Time: "2026-01-01T00:00:00Z", Kinds: "rules"}
	b.mustWrite(t, r)
	b.now = b.now.Add(time.Hour)
	b.mustWrite(t, goodReport())
	if b.patches != 1 {
		t.Errorf("%d patches", b.patches)
	}
	r.LastRepair.Time = "2026-01-01T01:00:00Z"
	r.Notes = "a setting without effect"
	b.mustWrite(t, r)
	r.LastRepair.Time = "2026-01-01T02:00:00Z"
	b.now = b.now.Add(time.Hour)
	if b.mustWrite(t, r); b.patches != 3 || len(b.events.Events) != 1 {
		t.Errorf("%d patches after two repairs, %d events for one note", b.patches, len(b.events.Events))
	}
}

// The object of a static pod at the API server has another UID than the pod that the kubelet gives. The patch must not reach another pod of that name.
func TestPatch_staticPod_namesItByItsMirror(t *testing.T) {
	r := goodReport()
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        bool
	}{
		"by the kubelet":          {map[string]string{"kubernetes.io/config.source": "file"}, true},
		"by the API server":       {map[string]string{"kubernetes.io/config.source": "file", keyMirror: "hash"}, false},
		"a pod of the API server": {nil, false},
	} {
		data, err := r.patch(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}}, time.Now())
		var written struct{ Metadata metav1.ObjectMeta }
		if err := errors.Join(err, json.Unmarshal(data, &written)); err != nil {
			t.Fatal(err)
		}
		if got := written.Metadata; (got.UID == "") != tc.want || (got.Annotations[keyMirror] == r.Sandbox.UID) != tc.want || got.Annotations[podreport.KeyStatus] == "" {
			t.Errorf("%s: %s", name, data)
		}
	}
}
