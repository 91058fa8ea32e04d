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
		"it is in again, and starts a container":  {by: NRI, now: says("true"), want: Unchanged},
		"it says something that nobody knows":     {by: Watch, now: says("perhaps"), want: Skipped},
		"it is gone, and its containers run":      {by: Watch, err: podnet.ErrNoPod, want: Skipped, last: true},
		"the API server is away":                  {by: Watch, err: errors.New("connection refused"), want: Failed, wrong: true},
		"the API server is away, and a container": {by: NRI, err: errors.New("connection refused"), want: Failed, wrong: true},
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

// The cache may be late. A pod that has opted in again by the time its sandbox is made must not start without rules.
func TestASandboxOfAPodThatOptsOutIsMadeAsTheAPIServerSaysNow(t *testing.T) {
	for name, c := range map[string]struct {
		by    Entrance
		now   string // what the annotation says by now
		err   error
		want  Result
		rules bool
	}{
		"it opts out":                   {by: NRI, now: "false", want: Unchanged},
		"it is in again":                {by: NRI, now: "true", want: Changed, rules: true},
		"it is in again, by way of CNI": {by: CNI, now: "true", want: Changed, rules: true},
		"it is gone":                    {by: NRI, err: podnet.ErrNoPod, want: Unchanged},
		"the API server is away":        {by: NRI, err: errors.New("connection refused"), want: Failed},
		"the API server is away, and the sandbox runs":    {by: Watch, err: errors.New("connection refused"), want: Unchanged},
		"what the sandbox that runs is told by the watch": {by: Watch, now: "true", want: Unchanged},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.pods.pod.Annotations[intent.KeyInitialize] = "false"
			b.pods.current, b.pods.errNow = askingPod(), c.err
			b.pods.current.Annotations[intent.KeyInitialize] = c.now
			s := b.sandbox
			s.ID, s.NetNS = "sandbox-1", "/netns/1"
			got, err := b.Ensure(t.Context(), c.by, s)
			if got != c.want || (got == Failed) != (err != nil) {
				t.Errorf("result %s, error %v", got, err)
			}
			if rules := b.backend.rules("/netns/1") != ""; rules != c.rules {
				t.Errorf("it has rules: %t", rules)
			}
			if c.want != Unchanged {
				return
			}
			b.pods.errNow = errors.New("asked again")
			if got, err := b.Ensure(t.Context(), c.by, s); got != Unchanged || err != nil {
				t.Errorf("the same sandbox once more: result %s, error %v", got, err)
			}
			s.ID, s.NetNS = "sandbox-2", "/netns/2"
			if _, err := b.Ensure(t.Context(), c.by, s); c.by.early() != errors.Is(err, b.pods.errNow) {
				t.Errorf("its next sandbox: error %v", err)
			}
		})
	}
}
