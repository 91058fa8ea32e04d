// Package pki makes a cluster's keys and certificates. Each start of a cluster makes new ones.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"time"
)

// lifetime is longer than any cluster of this kit is up. Certificates are valid from an hour before, for machines whose clock is set back.
const lifetime = 365 * 24 * time.Hour

// Pair is a certificate and its key, PEM encoded.
type Pair struct {
	Cert, Key []byte
}

// Request says for whom a certificate is.
type Request struct {
	// CommonName and Organization are the user and the group of a client.
	CommonName, Organization string
	// Names and Addrs are where a server is reached. Given either, the certificate is a server's, else a client's.
	Names []string
	Addrs []netip.Addr
}

// CA signs everything in the cluster: servers, clients and, through the controller manager, requests.
type CA struct {
	Pair
	parsedCert *x509.Certificate
	signer     *ecdsa.PrivateKey
}

// NewCA makes a certificate authority.
func NewCA(name string) (*CA, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	pair, cert, err := sign(template, nil, key, key)
	if err != nil {
		return nil, err
	}
	return &CA{Pair: pair, parsedCert: cert, signer: key}, nil
}

// Issue makes a key and signs a certificate for it.
func (c *CA) Issue(r Request) (Pair, error) {
	key, err := newKey()
	if err != nil {
		return Pair{}, err
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: r.CommonName},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		DNSNames:    r.Names,
	}
	if r.Organization != "" {
		template.Subject.Organization = []string{r.Organization}
	}
	for _, a := range r.Addrs {
		template.IPAddresses = append(template.IPAddresses, net.IP(a.AsSlice()))
	}
	if len(r.Names)+len(r.Addrs) > 0 {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	pair, _, err := sign(template, c.parsedCert, key, c.signer)
	return pair, err
}

// SigningKey makes the key pair of service account tokens: private and public, PEM encoded.
func SigningKey() (private, public []byte, err error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	if private, err = keyPEM(key); err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a public key: %w", err)
	}
	return private, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

// sign fills in serial and dates; without a parent the certificate signs itself.
func sign(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (Pair, *x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return Pair{}, nil, fmt.Errorf("choose a serial number: %w", err)
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(lifetime)
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return Pair{}, nil, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return Pair{}, nil, fmt.Errorf("read back the certificate of %s: %w", template.Subject.CommonName, err)
	}
	private, err := keyPEM(key)
	if err != nil {
		return Pair{}, nil, err
	}
	return Pair{Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Key: private}, cert, nil
}

// newKey makes an elliptic-curve key, which takes much less than a millisecond.
func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}

// keyPEM uses the form that every Kubernetes component reads.
func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
