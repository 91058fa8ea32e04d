package e2e

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// rotatedPods is how many pods have the secrets of their proxies replaced, rotations how often, unless E2E_ROTATED_PODS and E2E_ROTATIONS
	// say otherwise.
	rotatedPods = 3
	rotations   = 1
	// rotatedEvery is the time between two new connections in each direction, and to the proxies, of all pods together.
	rotatedEvery = 15 * time.Millisecond
)

// rotating are pods under load.
type rotating struct {
	managed
	pods   []*corev1.Pod
	tls    []*handshakes
	loads  []*inboundLoad
	held   []*echo
	ticker *ticker
}

// The proxies' key is replaced while connections run in both directions, and to the proxies: none fails, none breaks, and the new one is served.
//
//e2e:rounds nri
func TestSidecarSecretsRotateWithoutALostConnection(t *testing.T) {
	t.Parallel()
	trusted := x509.NewCertPool()
	now := newCertificate(t, 1, trusted)
	next := make([]certificate, amount(t, "E2E_ROTATIONS", rotations)) // all before the pods, which make the pool be used
	for i := range next {
		next[i] = newCertificate(t, int64(i+2), trusted)
	}
	m := newManaged(t, withTLS)
	m.putSecret(t, tlsSecret, now.files)
	r := m.startRotating(t, amount(t, "E2E_ROTATED_PODS", rotatedPods), trusted)
	for i, c := range next {
		began := time.Now()
		m.putSecret(t, tlsSecret, c.files)
		shown := time.Since(began)
		r.awaitServed(t, c, int64(i+1))
		t.Logf("rotation %d: in the agent after %s, served by %d proxies after %s", i, shown.Round(time.Millisecond), len(r.pods), time.Since(began).Round(time.Millisecond))
		now = c
	}
	r.wantNoneLost(t)
	r.wantSecret(t, now, int64(len(next)))
	var uids []types.UID
	for _, pod := range r.pods {
		uids = append(uids, pod.UID)
		must(t, m.pods().Delete(t.Context(), pod.Name, metav1.DeleteOptions{}))
	}
	m.wantNothingLeft(t, uids)
}

func (m managed) startRotating(t *testing.T, n int, trusted *x509.CertPool) rotating {
	t.Helper()
	f := families()[0]
	r := rotating{managed: m, ticker: listenTicks(t)}
	world, ticks := f.at(1, worldPort).String(), f.at(2, uint16(r.ticker.Addr().(*net.TCPAddr).Port)).String()
	yes, every := true, time.Duration(n)*rotatedEvery
	for i := range n {
		pod := loadedPod(fmt.Sprintf("rotating-%d", i), every, world, ticks)
		pod.Spec.ShareProcessNamespace = &yes
		m.create(t, pod)
	}
	for i := range n {
		pod := m.await(t, fmt.Sprintf("rotating-%d", i), isReadyNow)
		r.pods = append(r.pods, pod)
		r.tls = append(r.tls, loadTLS(t, every, at(pod, f, tlsPort), trusted))
		r.loads = append(r.loads, loadInboundEvery(t, every, at(pod, f, appPort), f.passthrough))
		r.held = append(r.held, dialEcho(t, at(pod, f, appTCPPort)))
	}
	eventually(t, "the pods' connections", func(ctx context.Context) error {
		if conns, _, _ := r.ticker.now(); conns < n {
			return fmt.Errorf("%d of %d are open", conns, n)
		}
		return m.eachDials(ctx, r.pods, func(s summary) error { return atLeast(s.OK, 1) })
	})
	return r
}

// awaitServed waits until all proxies serve a certificate, and wants the connections that are open to live.
func (r rotating) awaitServed(t *testing.T, c certificate, epoch int64) {
	t.Helper()
	for i, pod := range r.pods {
		r.awaitSidecar(t, pod.Name, isServing(epoch))
		eventually(t, "the certificate of "+pod.Name, func(context.Context) error { return r.tls[i].serves(c.serial) })
		r.held[i].say(t, fmt.Sprint("after rotation ", epoch))
	}
}

func (r rotating) wantNoneLost(t *testing.T) {
	t.Helper()
	asked, shaken, dialled := 0, map[int64]int{}, 0
	for i, l := range r.loads {
		l.stop(t)
		r.tls[i].stop()
		asked += l.asked
		if l.failed != nil || l.bypassed > 0 || l.asked == 0 {
			t.Errorf("inbound of pod %d: of %d connections %d bypassed the proxy, error %v", i, l.asked, l.bypassed, l.failed)
		}
		if err := r.tls[i].failed; err != nil {
			t.Errorf("a connection to the proxy of pod %d: %v", i, err)
		}
		for serial, n := range r.tls[i].of {
			shaken[serial] += n
		}
	}
	must(t, r.eachDials(t.Context(), r.pods, func(s summary) error {
		dialled += s.OK
		if s.Failed > 0 {
			return fmt.Errorf("of %d connections %d failed: %v", s.OK+s.Failed, s.Failed, s.Errors)
		}
		return nil
	}))
	conns, ended, read := r.ticker.now()
	if conns != len(r.pods) || ended != 0 {
		t.Errorf("of the pods' %d open connections %d have ended; want %d and none", conns, ended, len(r.pods))
	}
	t.Logf("%d inbound and %d outbound connections, %d lines on %d open ones, handshakes by certificate: %v", asked, dialled, read, conns, shaken)
}

// wantSecret wants the key to be in the proxies alone, and in memory alone.
func (r rotating) wantSecret(t *testing.T, c certificate, epoch int64) {
	t.Helper()
	for _, pod := range r.pods {
		dir := r.secretsOf(t, pod, epoch)
		wantPrivate(t, dir)
		for name, want := range c.files {
			if text, err := os.ReadFile(filepath.Join(dir, "tls/..data", name)); err != nil || !bytes.Equal(text, want) {
				t.Errorf("%s of %s is not the last one, error %v", name, pod.Name, err)
			}
		}
	}
	agent := r.agent(t)
	if n := wantInMemory(t, r.containerPID(t, agent, "agent"), "/"+agentSecrets+"/"); n == 0 {
		t.Error("the agent has no Secret mounted")
	}
	for _, text := range []string{r.agentLog(t), r.proxyLog(t, r.pods[0])} {
		if strings.Contains(text, firstLineOf(c.files["tls.key"])) {
			t.Error("a log has the key")
		}
	}
	r.wantNotOnDisk(t, []byte(firstLineOf(c.files["tls.key"])))
	out, err := r.run(t.Context(), command{namespace: r.name, pod: r.pods[0].Name, container: "talks", argv: []string{"sh", "-c", proxySearch}})
	must(t, err)
	if !strings.Contains(out, "uid=0") || strings.Contains(out, "tls") || strings.Contains(out, "PRIVATE KEY") {
		t.Errorf("the application's root finds\n%s", out)
	}
}
