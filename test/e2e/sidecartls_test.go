package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// tlsSecret is in the chart's value proxies.secrets.
	tlsSecret        = "e2e-tls"
	tlsPort   uint16 = 15443
	tlsName          = "proxy.example"
)

// certificate is one that a proxy serves, known by its serial number.
type certificate struct {
	serial int64
	files  map[string][]byte
}

func newCertificate(t *testing.T, serial int64, trusted *x509.CertPool) certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	of := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: tlsName}, DNSNames: []string{tlsName}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, of, of, &key.PublicKey, key)
	must(t, err)
	made, err := x509.ParseCertificate(raw)
	must(t, err)
	trusted.AddCert(made)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	return certificate{serial, map[string][]byte{
		"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	}}
}

// withTLS has HAProxy serve a Secret's key, which it reads when it starts.
func withTLS(spec map[string]any) {
	source := secretSource("tls", tlsSecret, "tls.crt", "tls.key")
	source["upgradeOnRotation"] = true
	withSecrets(source)(spec)
	drainsLong(spec)
	spec["network"] = map[string]any{"excludeInboundPorts": []any{int64(15021), int64(tlsPort)}}
	file := spec["files"].([]any)[0].(map[string]any)
	text := strings.Replace(file["template"].(string), "global\n", "global\n  ssl-load-extra-del-ext\n", 1)
	file["template"] = text + fmt.Sprintf("\nfrontend tls\n  mode http\n  bind 0.0.0.0:%d ssl crt /run/sidecar-secrets/tls/tls.crt\n"+
		"  no log\n  http-request return status 200\n", tlsPort)
}

// handshakes are connections to a proxy's TLS port, one after the other.
type handshakes struct {
	to      netip.AddrPort
	trusted *x509.CertPool
	cancel  context.CancelFunc
	ended   sync.WaitGroup

	mu     sync.Mutex
	of     map[int64]int // how many, by the certificate's serial number
	last   int64
	failed error
}

func loadTLS(t *testing.T, every time.Duration, to netip.AddrPort, trusted *x509.CertPool) *handshakes {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	h := &handshakes{to: to, trusted: trusted, cancel: cancel, of: map[int64]int{}}
	h.ended.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for ctx.Err() == nil {
			h.shake(context.WithoutCancel(ctx))
			<-tick.C
		}
	})
	t.Cleanup(h.stop)
	return h
}

func (h *handshakes) stop() { h.cancel(); h.ended.Wait() }

func (h *handshakes) shake(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	dialer := tls.Dialer{NetDialer: &net.Dialer{}, Config: &tls.Config{RootCAs: h.trusted, ServerName: tlsName, MinVersion: tls.VersionTLS12}}
	conn, err := dialer.DialContext(ctx, "tcp", h.to.String())
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.failed = err
		return
	}
	h.last = conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	h.of[h.last]++
	_ = conn.Close()
}

// serves wants the last connection to have seen a certificate.
func (h *handshakes) serves(serial int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last != serial {
		return fmt.Errorf("it serves certificate %d, want %d", h.last, serial)
	}
	return nil
}
