package serving

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
)

const (
	// certificateLookPause is the time between two looks at the files of a certificate.
	certificateLookPause = 10 * time.Second
	selfSignedTime       = 365 * 24 * time.Hour
)

// Certificate is the certificate of a TLS server of the given name:
//
//   - that in tls.crt and tls.key of a directory, which the kubelet fills from a Secret, as soon as they are there, and anew when they change;
//   - otherwise a self-signed one, made when it is first asked for and again in the last tenth of its life.
//
// Files that cannot be used leave the earlier certificate in use.
type Certificate struct {
	Name, Dir string

	mu      sync.Mutex
	looked  time.Time
	current *tls.Certificate
	made    time.Time // of a self-signed one; zero for one of the directory
	content string    // of the files, to see changes
}

// Get is tls.Config.GetCertificate.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.Dir != "" && (c.looked.IsZero() || now.Sub(c.looked) >= certificateLookPause) {
		c.looked = now
		if err := c.read(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			ctrl.Log.Error(err, "certificate not used", "dir", c.Dir)
		}
	}
	if c.current != nil && (c.made.IsZero() || now.Sub(c.made) < selfSignedTime*9/10) {
		return c.current, nil
	}
	made, err := SelfSigned(c.Name, now, now.Add(selfSignedTime))
	if err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	c.current, c.made = made, now
	return made, nil
}

// read takes the directory's certificate if it has changed.
func (c *Certificate) read() error {
	certificate, errCertificate := os.ReadFile(filepath.Join(c.Dir, "tls.crt"))
	key, errKey := os.ReadFile(filepath.Join(c.Dir, "tls.key"))
	if err := errors.Join(errCertificate, errKey); err != nil {
		return err
	}
	content := string(certificate) + string(key)
	if content == c.content {
		return nil
	}
	c.content = content
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return fmt.Errorf("read tls.crt and tls.key: %w", err)
	}
	c.current, c.made = &pair, time.Time{}
	return nil
}

// SelfSigned makes a certificate that encrypts, and proves nothing. It holds a day ago already: clocks differ.
func SelfSigned(name string, now, until time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
