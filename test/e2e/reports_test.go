package e2e

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// details is what the agent writes about a pod's rules.
type details struct {
	Sandbox  string    `json:"sandbox"`
	Hook     string    `json:"hook"`
	Backend  string    `json:"backend"`
	SpecHash string    `json:"specHash"`
	Time     time.Time `json:"time"`
	Message  string    `json:"message"`

	Listening  string `json:"listening"`
	Late       string `json:"late"`
	LastRepair struct {
		Kinds string `json:"kinds"`
	} `json:"lastRepair"`
}

func detailsOf(pod *corev1.Pod) (details, error) {
	var d details
	if err := json.Unmarshal([]byte(pod.Annotations[keyDetails]), &d); err != nil {
		return d, fmt.Errorf("annotation %s: %q: %w", keyDetails, pod.Annotations[keyDetails], err)
	}
	return d, nil
}

func readDetails(t testing.TB, pod *corev1.Pod) details {
	t.Helper()
	d, err := detailsOf(pod)
	must(t, err)
	return d
}

// first returns the details of the first report of a sandbox. When its containers were started is asked after that report.
func (d details) first() details {
	d.Late = ""
	return d
}

// hasStatus wants a status, and the condition that belongs to it: both are written at once.
func hasStatus(want string) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		if got := pod.Annotations[keyStatus]; got != want {
			return fmt.Errorf("status is %q, want %q: %s", got, want, pod.Annotations[keyDetails])
		}
		wanted := corev1.ConditionTrue
		if want == statusFailed {
			wanted = corev1.ConditionFalse
		}
		if c := conditionOf(pod); c.Status != wanted {
			return fmt.Errorf("status is %q, but the condition is %+v", want, c)
		}
		return nil
	}
}

// hasOtherHash wants rules of another specification than before.
func hasOtherHash(before string) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		d, err := detailsOf(pod)
		if err != nil {
			return err
		}
		if d.SpecHash == before {
			return fmt.Errorf("the rules are still those of %s", before)
		}
		return hasStatus(statusInitialized)(pod)
	}
}

// conditionOf is the agent's condition; it is empty on a pod that has none.
func conditionOf(pod *corev1.Pod) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == condition {
			return c
		}
	}
	return corev1.PodCondition{}
}

// wantUntouched wants a pod without a word of the agent.
func wantUntouched(t testing.TB, pod *corev1.Pod) {
	t.Helper()
	status, said := pod.Annotations[keyStatus]
	if said || conditionOf(pod).Type != "" {
		t.Errorf("pod %s has status %q and condition %+v, want neither", pod.Name, status, conditionOf(pod))
	}
}

// wantToldNotRequired wants a pod that asked, was left alone, and is told so by the condition only, which keeps no gate shut.
func wantToldNotRequired(t testing.TB, pod *corev1.Pod) {
	t.Helper()
	status, said := pod.Annotations[keyStatus]
	if c := conditionOf(pod); said || c.Status != corev1.ConditionTrue || c.Reason != "NotRequired" || c.Message == "" {
		t.Errorf("pod %s has status %q and condition %+v, want only a condition that says why it was left alone", pod.Name, status, c)
	}
}
