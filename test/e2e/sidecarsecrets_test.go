package e2e

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
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

// rotating are pods under load, and connections to their proxies.
type rotating struct {
	*underLoad
	tls []*handshakes
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
	r.wantNoHandshakeLost(t)
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
	yes, every := true, time.Duration(n)*rotatedEvery
	r := rotating{underLoad: m.startUnderLoad(t, n, every, func(pod *corev1.Pod) { pod.Spec.ShareProcessNamespace = &yes })}
	for _, pod := range r.pods {
		r.tls = append(r.tls, loadTLS(t, every, at(pod, families()[0], tlsPort), trusted))
	}
	return r
}

// awaitServed waits until all proxies serve a certificate, and wants the connections that are open to live.
func (r rotating) awaitServed(t *testing.T, c certificate, epoch int64) {
	t.Helper()
	for i, pod := range r.pods {
		r.awaitSidecar(t, pod.Name, isServing(epoch))
		eventually(t, "the certificate of "+pod.Name, func(context.Context) error { return r.tls[i].serves(c.serial) })
	}
	r.say(t, fmt.Sprint("after rotation ", epoch))
}

// wantNoHandshakeLost ends the connections to the proxies, and wants none to have failed.
func (r rotating) wantNoHandshakeLost(t *testing.T) {
	t.Helper()
	shaken := map[int64]int{}
	for i := range r.tls {
		r.tls[i].stop()
		if err := r.tls[i].failed; err != nil {
			t.Errorf("a connection to the proxy of pod %d: %v", i, err)
		}
		for serial, n := range r.tls[i].of {
			shaken[serial] += n
		}
	}
	t.Logf("handshakes by certificate: %v", shaken)
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
