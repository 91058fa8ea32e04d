package e2e

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// meshRoot is a certificate authority of the mesh, with its key.
type meshRoot struct{ cert, key []byte }

// newRoot makes an authority as an administrator does.
func newRoot(t *testing.T) meshRoot {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	of := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{Organization: []string{"cluster.local"}, CommonName: "second root"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(100 * 24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	raw, err := x509.CreateCertificate(rand.Reader, of, of, &key.PublicKey, key)
	must(t, err)
	return meshRoot{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}),
		pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
	}
}

// The root of the mesh is replaced as Istio says: first all trust both, then the new one signs, then nobody trusts the old one. Proxies follow
// without a restart, no connection is lost, and none that is held is cut. A change from one day to the next separates old proxies from new ones,
// until an edit of the profile has replaced the old ones.
func (o outside) roots(t *testing.T) {
	m := o.open(t, renewsOften)
	secrets := m.api.CoreV1().Secrets("istio-system")
	own, err := secrets.Get(t.Context(), "istio-ca-secret", metav1.GetOptions{})
	must(t, err)
	first, second := meshRoot{own.Data["ca-cert.pem"], own.Data["ca-key.pem"]}, newRoot(t)
	t.Cleanup(func() { o.restore(t) })
	var before []int
	for _, pod := range m.pods {
		before = append(before, m.containerPID(t, pod, managedProxy))
	}
	held := m.hold(t)
	for _, step := range []struct {
		name    string
		signs   meshRoot
		trusted []meshRoot
	}{
		{"both are trusted", first, []meshRoot{first, second}},
		{"the new one signs", second, []meshRoot{first, second}},
		{"the old one is gone", second, []meshRoot{second}},
	} {
		began := time.Now()
		o.sign(t, step.signs, step.trusted...)
		m.awaitRoots(t, step.trusted...)
		m.awaitRenewal(t, m.pods...)
		for _, pod := range m.pods {
			_, err := certificateOf(t.Context(), pod, string(step.signs.cert))
			must(t, err)
		}
		m.awaitMore(t, m.buying)
		for _, h := range held {
			h.say(t, step.name)
		}
		t.Logf("%s: %s", step.name, time.Since(began).Round(time.Millisecond))
	}
	for i, pod := range m.pods {
		if now := m.containerPID(t, pod, managedProxy); now != before[i] {
			t.Errorf("the proxy of %s is process %d, was %d", pod.Name, now, before[i])
		}
	}
	for _, h := range held {
		must(t, h.told.Close())
	}
	m.wantNothingLost(t)
	o.hardChange(t, m, first)
}

// hardChange has the first root be the only one at once. Proxies with certificates of a usual lifetime go on among themselves.
func (o outside) hardChange(t *testing.T, m *mall, first meshRoot) {
	t.Helper()
	m.upgrade(t, "to certificates of a day", version(1), func() {})
	o.restore(t)
	m.awaitRoots(t, first)
	m.awaitMore(t, m.buying)
	late := m.create(t, m.member(t, "late", "v1"))
	m.await(t, late.Name, isReadyNow)
	if _, err := m.testapp(t.Context(), late, "get", meshURL("store")); err == nil {
		t.Error("a pod with the new root alone reaches one that has the old root alone")
	}
	m.upgrade(t, "to the new root", version(2), func() {})
	m.asks(t, patience, late, meshURL("store"), func(a answer) error { return m.calledBy(a, "store", "late") })
	must(t, m.eachDials(t.Context(), m.buying, func(s summary) error {
		t.Logf("with a hard change: %d new connections, %d lost: %v", s.OK+s.Failed, s.Failed, s.Errors)
		return nil
	}))
	m.wantIdentities(t, append(m.pods, late))
}

// sign has istiod sign by a root, and hand out roots that are trusted.
func (o outside) sign(t *testing.T, by meshRoot, trusted ...meshRoot) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cacerts"}, Data: map[string][]byte{
		"ca-cert.pem": by.cert, "ca-key.pem": by.key, "cert-chain.pem": by.cert, "root-cert.pem": []byte(bundle(trusted)),
	}}
	secrets := o.api.CoreV1().Secrets("istio-system")
	_, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = secrets.Create(t.Context(), secret, metav1.CreateOptions{})
	}
	must(t, err)
	o.restartIstiod(t)
}

// restore has istiod sign by the root that it has made itself.
func (o outside) restore(t *testing.T) {
	t.Helper()
	err := o.api.CoreV1().Secrets("istio-system").Delete(cleanup(t), "cacerts", metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return
	}
	must(t, err)
	o.restartIstiod(t)
}

// bundle are certificates in one text.
func bundle(roots []meshRoot) string {
	var out strings.Builder
	for _, root := range roots {
		out.WriteString(strings.TrimSpace(string(root.cert)) + "\n")
	}
	return out.String()
}

// awaitRoots waits until the proxies' files have some roots and no others.
func (m *mall) awaitRoots(t *testing.T, want ...meshRoot) {
	t.Helper()
	for _, pod := range m.pods {
		home := m.home(t, pod)
		eventually(t, "the roots of "+pod.Name, func(ctx context.Context) error {
			status, err := m.sidecar(ctx, pod.Name)
			if err != nil {
				return err
			}
			epoch, _ := status["epoch"].(int64)
			text, err := os.ReadFile(filepath.Join(home, fmt.Sprintf("secrets-%d", epoch), "istio/..data/root-cert.pem"))
			if err != nil {
				return err
			}
			for _, root := range want {
				if !strings.Contains(string(text), strings.TrimSpace(string(root.cert))) {
					return errors.New("one is missing")
				}
			}
			if has := strings.Count(string(text), "BEGIN CERTIFICATE"); has != len(want) {
				return fmt.Errorf("it has %d, want %d", has, len(want))
			}
			return nil
		})
	}
}
