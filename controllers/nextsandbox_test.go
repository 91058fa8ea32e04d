package controllers

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

// Changes that come before a check finds that the sandbox is gone have been left to it, and none may follow.
func TestVisit_checkFindsNoSandbox_looksForTheNextOne(t *testing.T) {
	for name, c := range map[string]struct {
		next   map[string]podnet.Sandbox
		reason string
	}{
		"it runs":             {map[string]podnet.Sandbox{"uid-1": {ID: "sandbox-2", NetNS: "/netns/2"}}, podreport.ReasonInitialized},
		"it does not run yet": {nil, podreport.ReasonSandboxNotReady},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.VerifyInterval = 10 * time.Second
			b.Announcers = []func() bool{func() bool { return true }}
			b.pods.pod.Status.PodIPs = []corev1.PodIP{{IP: "192.0.2.1"}}
			b.ensure(t, Changed)
			b.finder.sandboxes = c.next
			b.backend.identity["/netns/1"] = podnet.Identity{Ino: 2} // the sandbox's own is gone
			b.pods.pod.Annotations[podreport.KeyStatus] = string(podreport.StatusInitialized)
			b.ensure(t, Unchanged)
			w := newWorkWatch(b)
			t.Cleanup(w.queue.ShutDown)
			if err := w.visit(t.Context(), b.pods.pod, Verify, kernelLimit); err != nil && !absent(err) {
				t.Error(err)
			}
			if got := b.lastReport(t); got.Reason != c.reason {
				t.Errorf("report %+v", got)
			}
			if rules := b.backend.rules("/netns/2") != ""; rules != (c.next != nil) {
				t.Errorf("it has rules: %t", rules)
			}
		})
	}
}
