package e2e

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
)

// A proxy that hangs, here since it is stopped, is replaced and serves again: a HAProxy that cannot hand over its listeners, too.
//
//e2e:rounds nri
func TestProxyHungIsReplaced(t *testing.T) {
	t.Parallel()
	for _, handover := range []string{"none", "haproxy"} {
		t.Run(handover, func(t *testing.T) {
			t.Parallel()
			m := newManaged(t, func(spec map[string]any) {
				handsOver(spec, handover)
				spec["liveness"] = map[string]any{
					"httpGet": map[string]any{"port": int64(15021), "path": "/healthz/ready"}, "periodSeconds": int64(1), "failureThreshold": int64(3),
				}
			})
			pod := m.startManaged(t, plainPod("hangs"))
			m.wantProxied(t, pod)
			must(t, syscall.Kill(m.containerPID(t, pod, managedProxy), syscall.SIGSTOP))
			m.awaitSidecar(t, "hangs", func(status map[string]any) error {
				if epoch, _ := status["epoch"].(int64); epoch == 0 {
					return fmt.Errorf("it is not replaced: %v", status)
				}
				return errors.Join(says(true, "questions of liveness")(status), equal(status["restarts"], 1))
			})
			m.await(t, "hangs", isReadyNow)
			m.wantProxied(t, pod)
		})
	}
}
