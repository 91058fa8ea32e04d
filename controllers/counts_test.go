package controllers

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/internal/podnet"
)

func TestPodsAreCountedAsTheyAreReported(t *testing.T) {
	l := NewLedger()
	many := contention{repairs: contendedAfter}
	for uid, e := range map[string]Entry{
		"a": {State: Programmed}, "b": {State: Programmed}, "c": {State: Removed}, "d": {State: FailedPod}, "e": {State: ByOthers},
		"contended":                {State: Programmed, Findings: Findings{contention: many}},
		"preempted":                {State: Programmed, Findings: Findings{Preempted: "a table"}},
		"preempted and contended":  {State: Programmed, Findings: Findings{Preempted: "a table", contention: many}},
		"failed with old findings": {State: FailedPod, Findings: Findings{Preempted: "a table"}},
		"one repair":               {State: Programmed, Findings: Findings{contention: contention{repairs: 1}}},
		"not read yet":             {},
	} {
		e.Sandbox = podnet.Sandbox{Namespace: "shop", Name: uid, UID: uid, ID: uid}
		l.Put(e)
	}
	want := map[State]int{Programmed: 3, Removed: 1, FailedPod: 2, ByOthers: 1, ContendedPod: 1, PreemptedPod: 2}
	if diff := cmp.Diff(want, l.Count()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
