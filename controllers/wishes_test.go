package controllers

import (
	"strings"
	"testing"

	"istio-pod-network-controller/internal/intent"
)

const modeKey = "sidecar.istio.io/interceptionMode"

// The mode NONE takes the rules of a running pod away as its opting out does.
func TestModeNoneTakesRulesAway(t *testing.T) {
	b := newBench(t)
	b.ensure(t, Changed)
	b.pods.pod.Annotations[modeKey] = "NONE"
	b.ensure(t, Changed)
	if got := b.lastReport(t); b.backend.held["/netns/1"] != "" || got.Status != StatusRemoved || !strings.Contains(got.Message, "NONE") {
		t.Errorf("rules %q, report %+v", b.backend.held["/netns/1"], got)
	}
	delete(b.pods.pod.Annotations, modeKey)
	b.ensure(t, Changed)
	if b.backend.held["/netns/1"] == "" {
		t.Error("without the mode the rules do not come back")
	}
}

// A pod that never had rules is reported as not requiring any, and its gate opens.
func TestModeNoneIsNotRequired(t *testing.T) {
	b := newBench(t)
	b.pods.pod.Annotations[modeKey] = "NONE"
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); err != nil {
		t.Fatal(err)
	}
	if got := b.lastReport(t); got.Reason != ReasonNotRequired || got.Status != "" || got.condition() != "True" || got.Message != string(intent.ModeNone) {
		t.Errorf("report %+v", got)
	}
}

// What the runtime shows to the pod's owner has no word of the machinery in it.
func TestAPermanentErrorSaysOnlyWhatIsWrong(t *testing.T) {
	b := newBench(t)
	b.pods.pod.Annotations[modeKey] = "SIDEWAYS"
	_, err := b.Ensure(t.Context(), NRI, b.sandbox)
	if !Permanent(err) || !strings.HasPrefix(err.Error(), modeKey) || strings.Contains(err.Error(), "terminal") {
		t.Errorf("%v", err)
	}
}
