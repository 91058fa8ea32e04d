package controllers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

// maxMessage bounds a message: the API server refuses events whose note is longer than 1024 bytes.
const maxMessage = 1000

// Report is what the agent writes on a pod for its owner. With an empty Status only the condition is written, and a status that contradicts
// it is removed.
type Report struct {
	Sandbox  podnet.Sandbox
	Status   podreport.Status
	Reason   string
	Message  string
	Hook     Hook
	Backend  string
	SpecHash string
	// LastRepair is the last one in this sandbox that this agent has made.
	LastRepair podreport.Repair
	// Listening is Findings.Listening.
	Listening string
	// Held is podreport.Details.Held.
	Held string
	// Late is podreport.Details.Late.
	Late string
	// Event makes an event of a report that is no failure. A failure always makes one.
	Event bool
	// Notes are settings that may not have the effect that their author expects, one a line. Each becomes an event.
	Notes string
	// PodVersion is the resource version of the pod that the report is based on.
	PodVersion string
}

func (r Report) details(now time.Time) podreport.Details {
	return podreport.Details{
		Sandbox: r.Sandbox.ID, NetNS: r.Sandbox.NetNS, Hook: string(r.Hook), Backend: r.Backend, SpecHash: r.SpecHash,
		Time: now.UTC().Truncate(time.Second), Message: truncate(r.Message), Notes: truncate(r.Notes),
		LastRepair: r.LastRepair, Listening: r.Listening, Held: r.Held, Late: r.Late,
	}
}

// sameAs reports whether an earlier report says the same. The hook and the pod's version are ignored, and a repair that r does not know. So is the
// sandbox where there is only a condition, and the sandbox of a failure: a runtime that is refused one sandbox makes the next.
func (r Report) sameAs(earlier Report) bool {
	other := earlier
	other.Hook, other.PodVersion = r.Hook, r.PodVersion
	if r.LastRepair == (podreport.Repair{}) {
		other.LastRepair = podreport.Repair{}
	}
	if r.Status == podreport.StatusFailed || r.Status == "" {
		other.Sandbox = r.Sandbox
	}
	id, netns := other.Sandbox.ID, other.Sandbox.NetNS
	other.Sandbox = r.Sandbox // only ID and NetNS are written on the pod
	other.Sandbox.ID, other.Sandbox.NetNS = id, netns
	return r == other
}

// shownOn reports whether the pod already shows the report. Hook and time are ignored, and a repair by an earlier agent.
func (r Report) shownOn(pod *corev1.Pod) bool {
	c := findCondition(pod)
	if c == nil || c.Status != r.condition() || c.Reason != r.Reason || c.Message != truncate(r.Message) {
		return false
	}
	return r.annotatedOn(pod)
}

// annotatedOn is shownOn for annotations.
func (r Report) annotatedOn(pod *corev1.Pod) bool {
	if r.Status == "" {
		return !r.contradicts(pod)
	}
	said, ok := podreport.DetailsOn(pod)
	if !ok || pod.Annotations[podreport.KeyStatus] != string(r.Status) {
		return false
	}
	want := r.details(said.Time)
	want.Hook, want.Time = said.Hook, said.Time
	if r.LastRepair == (podreport.Repair{}) {
		want.LastRepair = said.LastRepair
	}
	if r.Status == podreport.StatusFailed {
		want.Sandbox, want.NetNS = said.Sandbox, said.NetNS
	}
	return want == said
}

// contradicts reports whether the pod has a status that cannot be true together with the report's condition. While a sandbox is
// being replaced the status stays, because a new report follows.
func (r Report) contradicts(pod *corev1.Pod) bool {
	return r.Status == "" && r.Reason != podreport.ReasonSandboxNotReady && reported(pod)
}

func (r Report) condition() corev1.ConditionStatus {
	if r.Status == podreport.StatusFailed || r.Reason == podreport.ReasonSandboxNotReady || r.Reason == podreport.ReasonProxyNotReady {
		return corev1.ConditionFalse
	}
	return corev1.ConditionTrue
}

// patch returns a strategic merge patch of pods/status, which merges conditions by type and accepts annotations. It contains the
// UID, so that it fails on another pod of the same name. A static pod's object has another UID than the pod: there the patch has the annotation that
// names the pod, which the API server lets nobody add or change (ValidatePodSpecificAnnotationUpdates).
func (r Report) patch(pod *corev1.Pod, now time.Time) ([]byte, error) {
	annotations, meta := map[string]any{}, map[string]any{}
	if isStatic(pod) {
		annotations[keyMirror] = r.Sandbox.UID
	} else {
		meta["uid"] = r.Sandbox.UID
	}
	if r.Status != "" {
		text, err := json.Marshal(r.details(now))
		if err != nil {
			return nil, fmt.Errorf("encode details: %w", err)
		}
		annotations[podreport.KeyStatus], annotations[podreport.KeyDetails] = r.Status, string(text)
	}
	if r.contradicts(pod) {
		annotations[podreport.KeyStatus], annotations[podreport.KeyDetails] = nil, nil
	}
	if len(annotations) > 0 {
		meta["annotations"] = annotations
	}
	changed := metav1.NewTime(now.UTC().Truncate(time.Second))
	if c := findCondition(pod); c != nil && c.Status == r.condition() {
		changed = c.LastTransitionTime
	}
	return json.Marshal(map[string]any{
		"metadata": meta,
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: podreport.Condition, Status: r.condition(), Reason: r.Reason, Message: truncate(r.Message), LastTransitionTime: changed,
		}}},
	})
}

func findCondition(pod *corev1.Pod) *corev1.PodCondition {
	return podreport.ConditionOf(pod, podreport.Condition)
}

// reported reports whether our status annotation says initialized or failed.
func reported(pod *corev1.Pod) bool {
	s := podreport.Status(pod.Annotations[podreport.KeyStatus])
	return s == podreport.StatusInitialized || s == podreport.StatusFailed
}

// gated reports whether our condition is one of the pod's readiness gates.
func gated(pod *corev1.Pod) bool {
	return slices.Contains(pod.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: podreport.Condition})
}

// truncate returns text that the API server stores unchanged: valid UTF-8 of at most maxMessage bytes.
func truncate(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= maxMessage {
		return s
	}
	end := maxMessage - len("...")
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "..."
}
