package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// withSharedNotes has HAProxy's configuration take a line from two of a pod's annotations: any words, and a number.
func withSharedNotes(t testing.TB) func(map[string]any) {
	t.Helper()
	return func(spec map[string]any) {
		changeTemplate(t, spec, "  maxconn 1000\n", `  maxconn 1000
  timeout client {{ or (index .Annotations "limit") "1h" }}
  {{ with index .Annotations "note" }}description {{ . }}{{ end }}
`)
	}
}

// One pod's trouble is its own, and that of the profile leaves what is in force alone.
//
//e2e:rounds nri
func TestSidecarSharedInTrouble(t *testing.T) {
	t.Parallel()
	m := newShared(t, sharedTrouble, withOneThread(t), withSharedNotes(t))
	steady := m.startManaged(t, plainPod("steady"))
	m.wantShared(t, steady)
	t.Run("annotations are data", func(t *testing.T) { m.wantAnnotationsAsData(t, steady) })
	t.Run("the end of the proxy", func(t *testing.T) { m.wantComeback(t) })
	m.wantShared(t, steady)
}

// wantAnnotationsAsData wants pods whose annotations are no words of the proxy's configuration to be refused, each with its own reason, and the
// others to come in.
func (m managed) wantAnnotationsAsData(t *testing.T, steady *corev1.Pod) {
	t.Helper()
	for name, annotations := range map[string]map[string]string{
		"newline":   {"note": "x\n  stats socket /run/sidecar/open.sock mode 666 level admin"},
		"directive": {"note": "%[env(PATH)]"},
		"number":    {"limit": "many"}, // one word, so that only the proxy itself finds it wrong
	} {
		pod := plainPod(name)
		pod.Annotations = annotations
		m.create(t, pod)
	}
	quoted := plainPod("quoted")
	quoted.Annotations = map[string]string{"note": `it's "q\' # $HOME`}
	m.wantShared(t, m.startManaged(t, quoted))
	for name, words := range map[string]string{"newline": "control characters", "directive": "%[env(PATH)]", "number": "timeout client"} {
		m.awaitSidecar(t, name, says(false, words))
		pod := m.await(t, name, hasReason(proxyNotReady))
		m.await(t, name, isRunning)
		m.awaitProxyFailed(t, pod)
		var a answer
		if err := request(t.Context(), at(pod, families()[0], appPort), "/", &a); err == nil {
			t.Errorf("%s: the application answered and saw %s, past the proxy", name, a.Peer)
		}
	}
	text, err := os.ReadFile(filepath.Join(m.node.NodeRoot, sharedRoot, m.profile, "files/current/haproxy.cfg"))
	must(t, err)
	if want := `description 'it'\''s "q\'\'' # $HOME'` + "\n"; !strings.Contains(string(text), want) || strings.Contains(string(text), "open.sock") {
		t.Errorf("the file has no line %s, or one of a pod:\n%.3000s", want, text)
	}
	m.annotate(t, "number", map[string]any{"limit": "30m"})
	m.wantShared(t, m.await(t, "number", isReadyNow))
	m.wantShared(t, steady)
}

// wantComeback kills the proxy: connections wait, and go past nothing, until it is back, with all pods, one of which is gone.
func (m managed) wantComeback(t *testing.T) {
	t.Helper()
	b := m.startBusy(t, "busy")
	gone := m.startManaged(t, plainPod("gone"))
	b.in.stop(t) // it takes a failed connection for one that went past the proxy
	before := m.sharedPod(t)
	must(t, syscall.Kill(m.containerPID(t, before, "proxy"), syscall.SIGKILL))
	now := int64(0)
	must(t, m.pods().Delete(t.Context(), gone.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	m.askUntilBack(t, at(b.pod, families()[0], appPort), before)
	m.await(t, b.pod.Name, isReadyNow)
	once := m.restartedOnce(t, before)
	for _, name := range []string{"steady", "quoted"} {
		m.wantShared(t, m.await(t, name, isReadyNow))
	}
	must(t, syscall.Kill(m.containerPID(t, b.pod, "dials"), syscall.SIGTERM))
	var sent summary
	eventually(t, "the end of the load", func(ctx context.Context) error {
		pod, err := m.pods().Get(ctx, b.pod.Name, metav1.GetOptions{})
		if err == nil && isRunning(pod) == nil {
			err = errors.New("it goes on")
		}
		return errors.Join(err, m.eachDials(ctx, []*corev1.Pod{b.pod}, func(s summary) error { sent = s; return nil }))
	})
	// Those that were made when the proxy ended may have no answer. Behind a second start, the kubelet has removed the log of the proxy that was
	// killed.
	if n := m.passed(t, "busy", "outbound", b.world) - 1; strings.Contains(fmt.Sprint(sent.Errors), "refused") || once && (n < sent.OK || n > sent.OK+2) {
		t.Errorf("outbound %d connections failed (%v), and %d were answered of %d that the proxy made", sent.Failed, sent.Errors, sent.OK, n)
	}
}

// restartedOnce wants the proxy to have been started anew in its pod. Where a namespace went between its check and its start, it was twice.
func (m managed) restartedOnce(t *testing.T, before *corev1.Pod) bool {
	t.Helper()
	after := m.sharedPod(t)
	status := after.Status.ContainerStatuses[0]
	ended := status.LastTerminationState.Terminated
	restarts := status.RestartCount - before.Status.ContainerStatuses[0].RestartCount
	once := restarts == 1
	twice := restarts == 2 && ended != nil && strings.Contains(ended.Message, "Cannot open namespace")
	if after.UID != before.UID || !once && !twice {
		t.Errorf("the proxy's pod was not restarted in its place: %+v", status)
	}
	return once
}

// askUntilBack makes connections until some have passed the proxy that was started in place of the one of before. None is refused meanwhile.
func (m managed) askUntilBack(t *testing.T, to netip.AddrPort, before *corev1.Pod) {
	t.Helper()
	passed := 0
	for began := time.Now(); passed < 20; {
		var a answer
		switch err := request(t.Context(), to, "/", &a); {
		case err == nil && a.peer() != families()[0].passthrough:
			t.Fatalf("the application saw %s, past the proxy", a.Peer)
		case err == nil && m.sharedPod(t).Status.ContainerStatuses[0].RestartCount > before.Status.ContainerStatuses[0].RestartCount:
			passed++
		case errors.Is(err, syscall.ECONNREFUSED):
			t.Errorf("a connection was refused %s after the proxy was killed", time.Since(began))
		}
		if time.Since(began) > patience {
			t.Fatal("the proxy is not back")
		}
	}
}
