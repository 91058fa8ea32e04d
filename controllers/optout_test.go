package controllers

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
)

// After an outage the watch sends each change since, in order. A pod that opted out and in again in the meantime must keep its rules.
func TestRulesAreRemovedOnlyIfThePodOptsOutNow(t *testing.T) {
	says := func(value string) *corev1.Pod {
		pod := askingPod()
		pod.Annotations[intent.KeyInitialize] = value
		return pod
	}
	for name, c := range map[string]struct {
		by      Entrance
		now     *corev1.Pod
		err     error
		want    Result
		wrong   bool
		removed bool
		last    bool // it is not tried again
	}{
		"it opts out":                             {by: Watch, now: says("false"), want: Changed, removed: true},
		"it is in again":                          {by: Watch, now: says("true"), want: Skipped},
		"it is in again, and starts a container":  {by: NRI, now: says("true"), want: Skipped},
		"it says something that nobody knows":     {by: Watch, now: says("perhaps"), want: Skipped},
		"it is gone, and its containers run":      {by: Watch, err: podnet.ErrNoPod, want: Skipped, last: true},
		"the API server is away":                  {by: Watch, err: errors.New("connection refused"), want: Failed, wrong: true},
		"the API server is away, and a container": {by: NRI, err: errors.New("connection refused"), want: Skipped},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.ensure(t, Changed)
			b.pods.pod.Annotations[intent.KeyInitialize] = "false"
			b.pods.current, b.pods.errNow = c.now, c.err
			s := b.sandbox
			s.ID, s.NetNS = "sandbox-1", "/netns/1"
			if got, err := b.Ensure(t.Context(), c.by, s); got != c.want || c.wrong != (err != nil) {
				t.Errorf("result %s, error %v", got, err)
			}
			if gone := b.backend.rules("/netns/1") == ""; gone != c.removed {
				t.Errorf("removed: %t", gone)
			}
			if e, _ := b.Ledger.Of("uid-1"); c.err != nil && e.Retry == c.last {
				t.Error("it is not tried again")
			}
		})
	}
}

// A pod that opted out before it had rules costs no question.
func TestAPodWithoutRulesOptsOutWithoutTheAPIServer(t *testing.T) {
	b := newBench(t)
	b.pods.pod.Annotations[intent.KeyInitialize] = "false"
	b.pods.errNow = errors.New("connection refused")
	s := b.sandbox
	s.ID, s.NetNS = "sandbox-1", "/netns/1"
	if got, err := b.Ensure(t.Context(), NRI, s); got != Unchanged || err != nil {
		t.Errorf("result %s, error %v", got, err)
	}
}
