package controllers

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/podreport"
)

// A pod that shows a long report shows that report: what the API server gives back is compared byte by byte with what was sent,
// and it keeps no half letters.
func TestLongReportsAreToldOnce(t *testing.T) {
	for name, message := range map[string]string{
		"letters of two bytes":  "x" + strings.Repeat("é", maxMessage),
		"letters of four bytes": strings.Repeat("😀", maxMessage),
		"no letters at all":     "\xff\xfe broken",
		"half a letter cut off": strings.Repeat("a", maxMessage-4) + "é and more",
	} {
		t.Run(name, func(t *testing.T) {
			r := Report{Status: podreport.StatusFailed, Reason: podreport.ReasonInvalidAnnotation, Message: message}
			pod := &corev1.Pod{}
			data, err := r.patch(pod, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(data, pod); err != nil {
				t.Fatal(err)
			}
			if !r.shownOn(pod) {
				t.Errorf("the pod shows %q, and it is written again", pod.Status.Conditions[0].Message)
			}
			if n := len(truncate(message)); n > maxMessage {
				t.Errorf("%d bytes", n)
			}
		})
	}
}
