package serving

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// writeCertificate writes a new certificate as the kubelet does with a Secret, and returns its serial number.
func writeCertificate(t *testing.T, dir string) string {
	t.Helper()
	pair, err := SelfSigned("agent", time.Now(), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, filepath.Join(dir, "tls.crt"), "CERTIFICATE", pair.Certificate[0])
	writePEM(t, filepath.Join(dir, "tls.key"), "PRIVATE KEY", key)
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return leaf.SerialNumber.String()
}

func writePEM(t *testing.T, file, kind string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCertificateFollowsItsFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Certificate{Name: "agent", Dir: t.TempDir()}
		now := func() string { t.Helper(); return leafOf(t, c).SerialNumber.String() }
		self := now()
		if again := now(); again != self {
			t.Error("a new certificate for each connection")
		}
		first := writeCertificate(t, c.Dir)
		if now() != self {
			t.Error("the files are read for each connection")
		}
		<-time.After(certificateLookPause)
		if got := now(); got != first {
			t.Errorf("once the Secret is there: %s, want %s", got, first)
		}
		second := writeCertificate(t, c.Dir)
		<-time.After(certificateLookPause)
		if got := now(); got != second {
			t.Errorf("once it has changed: %s, want %s", got, second)
		}
		writePEM(t, filepath.Join(c.Dir, "tls.key"), "PRIVATE KEY", []byte("rubbish"))
		<-time.After(certificateLookPause)
		if got := now(); got != second {
			t.Errorf("with a broken key: %s, want %s", got, second)
		}
		if err := os.Remove(filepath.Join(c.Dir, "tls.crt")); err != nil {
			t.Fatal(err)
		}
		<-time.After(certificateLookPause)
		if got := now(); got != second {
			t.Errorf("once the Secret is gone: %s, want %s", got, second)
		}
		<-time.After(selfSignedTime)
		if got := now(); got != second {
			t.Errorf("when the first one would have ended: %s, want %s", got, second)
		}
	})
}

func TestSelfSignedCertificateIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Certificate{Name: "agent"}
		first := leafOf(t, c)
		<-time.After(selfSignedTime * 9 / 10)
		second := leafOf(t, c)
		if first.SerialNumber.Cmp(second.SerialNumber) == 0 {
			t.Error("the same certificate in the last tenth of its life")
		}
		if err := second.VerifyHostname("agent"); err != nil || second.NotAfter.Before(time.Now().Add(selfSignedTime/2)) {
			t.Errorf("ends %s, %v", second.NotAfter, err)
		}
	})
}

func leafOf(t *testing.T, c *Certificate) *x509.Certificate {
	t.Helper()
	pair, err := c.Get(nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}
