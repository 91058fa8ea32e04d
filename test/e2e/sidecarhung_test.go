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
				spec["handover"] = handover
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

// stoppedAtStart is a HAProxy that is stopped, and only then has the socket of its epoch: it takes connections there, and answers none.
const stoppedAtStart = `haproxy=/usr/sbin/haproxy; $haproxy -db -f /etc/sidecar/haproxy.cfg &
until [ -S /run/sidecar/early.sock ]; do sleep 0.1; done
kill -STOP $!; /bin/busybox mv /run/sidecar/early.sock /run/sidecar/handover-$SIDECAR_EPOCH.sock; wait`

// A new HAProxy is not ready by what the old one answers on the ports that they share: the old one is not drained.
//
//e2e:rounds nri
func TestProxyReadinessIsItsOwn(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	pod := m.startManaged(t, plainPod("own"))
	before, err := m.sidecar(t.Context(), "own")
	must(t, err)
	good, err := m.profileSpec(t.Context())
	must(t, err)
	m.patchProfile(t, map[string]any{
		"command": []any{"sh", "-c", stoppedAtStart},
		"files": []any{map[string]any{"name": "haproxy.cfg", "syntax": "haproxy", "template": `global
  stats socket /run/sidecar/early.sock mode 600 level admin
defaults
  mode tcp
  timeout connect 5s
  timeout client 5s
  timeout server 5s
frontend other
  bind 127.0.0.1:15099
`}},
		"readiness": map[string]any{"startSeconds": int64(5)},
	})
	m.awaitSidecar(t, "own", says(true, "it was not ready within 5s", "does not answer on its socket"))
	if now, err := m.sidecar(t.Context(), "own"); err != nil || now["epoch"] != before["epoch"] {
		t.Errorf("the proxy that serves is %v, error %v; before it was %v", now, err, before)
	}
	m.wantProxied(t, pod)
	m.patchProfile(t, map[string]any{"command": good["command"], "files": good["files"], "readiness": good["readiness"]})
	m.awaitSidecar(t, "own", isServing(0))
	m.wantProxied(t, pod)
}

// A pod's annotation has its proxy replaced, once for each new value and with the handover: an open connection stays.
//
//e2e:rounds nri
func TestProxyRestartedByHand(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	pod := m.startManaged(t, plainPod("restarts"))
	held := dialEcho(t, at(pod, families()[0], appTCPPort))
	for i, value := range []string{"once", "twice"} {
		m.annotate(t, "restarts", map[string]any{keyRestartProxy: value})
		m.awaitSidecar(t, "restarts", func(status map[string]any) error {
			return errors.Join(isServing(int64(i+1))(status), equal(status["restarts"], 0))
		})
		held.say(t, "after a restart")
	}
	m.wantProxied(t, pod)
}
