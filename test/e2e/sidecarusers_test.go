package e2e

import (
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// usersOfNode are the user IDs of the node that the kubelet gives to no pod with a user namespace.
const usersOfNode = 1 << 16

// In a pod with a user namespace the proxy reads its files and writes its sockets, the rules know it, and it is upgraded without a lost
// connection, as a user and as root with NET_ADMIN. On the node it is neither.
//
//e2e:rounds nri
func TestSidecarInAUserNamespace(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(spec map[string]any){"user": withSecrets(tokenSource(tokenAudience)), "transparent": transparent} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newManaged(t, change, withOneThread(t)) // each connection has to be in its log
			m.needsUserNamespaces(t)
			pod, no := plainPod(name), false
			pod.Spec.HostUsers = &no
			pod = m.startManaged(t, pod)
			m.wantUserOfPod(t, pod)
			f, seen := families()[0], families()[0].passthrough
			if name == "transparent" {
				seen = f.client
			}
			load := loadInboundEvery(t, 20*time.Millisecond, at(pod, f, appPort), seen)
			held := dialEcho(t, at(pod, f, appTCPPort))
			for epoch, version := range []string{"", "next", "last"} {
				if epoch > 0 {
					m.newVersion(t, version)
				}
				m.awaitSidecar(t, pod.Name, isServing(int64(epoch)))
				held.say(t, "to epoch "+strconv.Itoa(epoch))
				if a := m.askFrom(t, pod, f.at(1, worldPort)); a.Banner != "world" {
					t.Errorf("outbound: %q answered, want the world", a.Banner)
				}
				m.awaitLine(t, pod, "outbound epoch="+strconv.Itoa(epoch))
			}
			load.stop(t)
			if load.failed != nil || load.bypassed > 0 || load.asked == 0 {
				t.Errorf("of %d connections %d bypassed the proxy, error %v", load.asked, load.bypassed, load.failed)
			}
		})
	}
}

// wantUserOfPod wants the pod's proxy to be no user of the node's own.
func (m managed) wantUserOfPod(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	uid, _, _ := strings.Cut(processField(t, m.containerPID(t, pod, managedProxy), "Uid"), "\t")
	if n, err := strconv.Atoi(uid); err != nil || n < usersOfNode {
		t.Errorf("the proxy is user %q of the node", uid)
	}
}
