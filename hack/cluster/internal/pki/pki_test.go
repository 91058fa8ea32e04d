package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"testing"
)

func TestServerCertificateIsGoodForItsAddressesOnly(t *testing.T) {
	ca := newCA(t)
	pair := issue(t, ca, Request{
		CommonName: "kube-apiserver", Names: []string{"kubernetes.default"},
		Addrs: []netip.Addr{netip.MustParseAddr("172.30.0.1"), netip.MustParseAddr("fd00:172:30::1")},
	})
	tests := map[string]struct {
		host    string
		wantErr bool
	}{
		"name":          {host: "kubernetes.default"},
		"IPv4 address":  {host: "172.30.0.1"},
		"IPv6 address":  {host: "fd00:172:30::1"},
		"other address": {host: "172.30.0.2", wantErr: true},
		"other name":    {host: "example.com", wantErr: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, pair.Cert).Verify(x509.VerifyOptions{
				DNSName: tt.host, Roots: roots(ca), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			})
			if (err != nil) != tt.wantErr {
				t.Errorf("verify for %s: %v", tt.host, err)
			}
		})
	}
}

func TestClientCertificateNamesUserAndGroup(t *testing.T) {
	ca := newCA(t)
	pair := issue(t, ca, Request{CommonName: "system:node:node1", Organization: "system:nodes"})
	cert := parse(t, pair.Cert)
	if cert.Subject.CommonName != "system:node:node1" || len(cert.Subject.Organization) != 1 || cert.Subject.Organization[0] != "system:nodes" {
		t.Errorf("subject is %s", cert.Subject)
	}
	verify := func(usage x509.ExtKeyUsage) error {
		_, err := cert.Verify(x509.VerifyOptions{Roots: roots(ca), KeyUsages: []x509.ExtKeyUsage{usage}})
		return err
	}
	if err := verify(x509.ExtKeyUsageClientAuth); err != nil {
		t.Errorf("as a client: %v", err)
	}
	if verify(x509.ExtKeyUsageServerAuth) == nil {
		t.Error("a client's certificate is good for a server")
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots(newCA(t)), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err == nil {
		t.Error("another authority vouches for the certificate")
	}
}

func TestKeyBelongsToCertificate(t *testing.T) {
	pair := issue(t, newCA(t), Request{CommonName: "admin"})
	if _, err := tls.X509KeyPair(pair.Cert, pair.Key); err != nil {
		t.Error(err)
	}
}

func TestSigningKeyHasBothHalves(t *testing.T) {
	private, public, err := SigningKey()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(private)
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	block, _ = pem.Decode(public)
	half, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if !key.PublicKey.Equal(half) {
		t.Error("the public key is another one's")
	}
}

func newCA(t *testing.T) *CA {
	t.Helper()
	ca, err := NewCA("test")
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func issue(t *testing.T, ca *CA, r Request) Pair {
	t.Helper()
	pair, err := ca.Issue(r)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func parse(t *testing.T, cert []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(cert)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func roots(ca *CA) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.Cert)
	return pool
}
