package e2e

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// transparent has the sample's HAProxy capture with TPROXY and connect to the application from the client's address.
func transparent(spec map[string]any) {
	spec["transparent"] = true
	file := spec["files"].([]any)[0].(map[string]any)
	text := regexp.MustCompile(`bind \S+:\{\{ \.Network\.InboundPort \}\}.*`).ReplaceAllString(file["template"].(string), "$0 transparent")
	text = regexp.MustCompile(`source \S+`).ReplaceAllString(text, "source 0.0.0.0 usesrc clientip")
	file["template"] = text
}

// The proxy alone has a privilege; it and the application see who really asks, before and after an upgrade, and during it nothing is lost.
//
//e2e:rounds nri
func TestSidecarThatIsTransparentKeepsTheClientsAddress(t *testing.T) {
	t.Parallel()
	m := newManaged(t, transparent, withOneThread(t))
	plain := plainPod("transparent")
	plain.Spec.Containers[0] = bare(plain.Spec.Containers[0])
	m.create(t, plain)
	asker := newPod("client", map[string]string{keySidecar: "none"}, bare(appContainer()))
	client := m.start(t, asker)
	pod := m.await(t, plain.Name, isReadyNow)
	if got := processField(t, m.containerPID(t, pod, "app"), "CapEff"); strings.Trim(got, "0") != "" {
		t.Errorf("the application has capabilities: %s", got)
	}
	m.wantNetAdminAlone(t, pod)
	f := families()[0]
	seen := func(epoch int) {
		m.awaitSidecar(t, pod.Name, isServing(int64(epoch)))
		wantKept(t, m.space, client, pod, f)
		for _, peer := range []string{f.client.String(), at(client, f, 0).Addr().String()} {
			m.awaitLine(t, pod, fmt.Sprintf("inbound epoch=%d peer=%s:", epoch, peer))
		}
		if a := m.askFrom(t, pod, f.at(1, worldPort)); a.Banner != "world" {
			t.Errorf("outbound: %q answered, want the world", a.Banner)
		}
		m.awaitLine(t, pod, fmt.Sprintf("outbound epoch=%d peer=%s:", epoch, at(pod, f, 0).Addr()))
	}
	seen(0)
	held := dialEcho(t, at(pod, f, appTCPPort))
	before := strings.Count(m.proxyLog(t, pod), "inbound epoch=")
	load := loadInboundEvery(t, 20*time.Millisecond, at(pod, f, appPort), f.client)
	m.newVersion(t, "next")
	m.awaitSidecar(t, pod.Name, isServing(1))
	held.say(t, "after the upgrade")
	load.stop(t)
	if load.failed != nil || load.bypassed > 0 || load.asked == 0 {
		t.Errorf("of %d connections during the upgrade %d came from elsewhere, error %v", load.asked, load.bypassed, load.failed)
	}
	eventually(t, "the proxies' lines", func(context.Context) error {
		return atLeast(strings.Count(m.proxyLog(t, pod), "inbound epoch=")-before, load.asked)
	})
	seen(1)
}

// wantNetAdminAlone wants the proxy's process to be root with one capability.
func (m managed) wantNetAdminAlone(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	pid := m.containerPID(t, pod, managedProxy)
	const netAdmin = "0000000000001000"
	for field, want := range map[string]string{"CapPrm": netAdmin, "CapBnd": netAdmin, "CapAmb": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2"} {
		if got := processField(t, pid, field); got != want {
			t.Errorf("the proxy's %s is %s, want %s", field, got, want)
		}
	}
	if got := strings.Fields(processField(t, pid, "Gid")); len(got) == 0 || got[0] != "1337" {
		t.Errorf("the proxy's groups are %v, want 1337", got)
	}
}

// awaitLine waits for words in the logs of a pod's proxies.
func (m managed) awaitLine(t *testing.T, pod *corev1.Pod, words string) {
	t.Helper()
	eventually(t, "the proxy's line "+words, func(context.Context) error {
		if log := m.proxyLog(t, pod); !strings.Contains(log, words) {
			return errors.New("there is none:\n" + log[max(len(log)-1000, 0):])
		}
		return nil
	})
}
