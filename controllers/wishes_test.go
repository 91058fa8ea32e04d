package controllers

import (
	"strings"
	"testing"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
)

const modeKey = "sidecar.istio.io/interceptionMode"

// The mode NONE takes the rules of a running pod away as its opting out does.
func TestModeNoneTakesRulesAway(t *testing.T) {
	b := newBench(t)
	b.ensure(t, Changed)
	b.pods.pod.Annotations[modeKey] = "NONE"
	b.ensure(t, Changed)
	if got := b.lastReport(t); b.backend.held["/netns/1"] != "" || got.Status != podreport.StatusRemoved || !strings.Contains(got.Message, "NONE") {
		t.Errorf("rules %q, report %+v", b.backend.held["/netns/1"], got)
	}
	delete(b.pods.pod.Annotations, modeKey)
	b.ensure(t, Changed)
	if b.backend.held["/netns/1"] == "" {
		t.Error("without the mode the rules do not come back")
	}
}

// An edit of the namespace's defaults is followed in running pods as one of their own annotations is. Its NONE is for new pods: it takes no rules
// away.
func TestEnsure_namespaceDefaultChanges_rulesFollow(t *testing.T) {
	const ports = "traffic.sidecar.istio.io/excludeOutboundPorts"
	b := newBench(t)
	b.ensure(t, Changed)
	b.pods.ns.Annotations = map[string]string{ports: "9999"}
	b.ensure(t, Changed)
	if !strings.Contains(b.backend.held["/netns/1"], "9999") {
		t.Errorf("rules %s", b.backend.held["/netns/1"])
	}
	hash := b.lastReport(t).SpecHash
	b.ensure(t, Unchanged)
	b.pods.ns.Annotations[modeKey] = "NONE"
	b.ensure(t, Skipped)
	if b.backend.held["/netns/1"] == "" {
		t.Error("the rules of a running pod are gone")
	}
	delete(b.pods.ns.Annotations, modeKey)
	b.pods.ns.Annotations[ports] = "x"
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); !Permanent(err) || !strings.HasPrefix(err.Error(), "annotation "+ports+" of namespace shop: ") {
		t.Errorf("error %v", err)
	}
	if got := b.lastReport(t); got.condition() != "True" || !strings.Contains(got.Notes, "of namespace shop") || b.backend.held["/netns/1"] == "" {
		t.Errorf("report %+v", got)
	}
	b.pods.pod.Annotations[ports] = "9999"
	b.ensure(t, Unchanged)
	if got := b.lastReport(t); got.Status != podreport.StatusInitialized || got.SpecHash != hash {
		t.Errorf("report %+v, want hash %s", got, hash)
	}
}

// A pod that never had rules is reported as not requiring any, and its gate opens.
func TestModeNoneIsNotRequired(t *testing.T) {
	b := newBench(t)
	b.pods.pod.Annotations[modeKey] = "NONE"
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); err != nil {
		t.Fatal(err)
	}
	if got := b.lastReport(t); got.Reason != podreport.ReasonNotRequired || got.Status != "" || got.condition() != "True" || got.Message != string(intent.ModeNone) {
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
