package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A node that restarts, or a runtime that crashes, leaves pods that say "initialized" in sandboxes that hold nothing.
//
//e2e:rounds nftables nri
func TestPodInANewSandboxIsProgrammedAgain(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	pod := s.startMesh(t, meshPod("reborn", nil))
	old := s.sandboxOf(t, pod)
	s.killSandbox(t, old)

	again := s.await(t, pod.Name, func(pod *corev1.Pod) error {
		d, err := detailsOf(pod)
		if err != nil {
			return err
		}
		if d.Sandbox == old.ID {
			return fmt.Errorf("details still name the sandbox that is gone: %+v", d)
		}
		return hasStatus(statusInitialized)(pod)
	})
	if again.UID != pod.UID {
		t.Fatalf("the pod's UID is %s, was %s: it is another pod", again.UID, pod.UID)
	}
	again = s.awaitAnswer(t, pod.Name)
	if got, want := readDetails(t, again).Sandbox, s.sandboxOf(t, again).ID; got != want {
		t.Errorf("details name sandbox %s, the pod runs in %s", got, want)
	}
	for _, f := range families() {
		wantInbound(t, again, f, appPort, true)
		s.wantOutbound(t, again, f.at(1, worldPort), true)
	}
}

// killSandbox ends the first process of a sandbox, and with it the sandbox. CRI-O has none: there the runtime ends the sandbox.
func (c *cluster) killSandbox(t *testing.T, s sandbox) {
	t.Helper()
	if s.PID == 0 {
		_, err := c.runtime.StopPodSandbox(t.Context(), &criv1.StopPodSandboxRequest{PodSandboxId: s.ID})
		must(t, err)
		return
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", s.PID))
	must(t, err)
	if strings.TrimSpace(string(name)) != "pause" {
		t.Fatalf("process %d of sandbox %s is %q, want pause", s.PID, s.ID, name)
	}
	must(t, syscall.Kill(s.PID, syscall.SIGKILL))
}
