// Package trust has a proxy's certificates, and the transport security made of them: mutual TLS whose peers are named by SPIFFE identities.
package trust

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"istio-pod-network-controller/test/e2e/xdsenvoy/discovery"
)

// Secrets are certificates and roots by name.
type Secrets struct {
	// Watch asks the server for a secret; called once for each name.
	Watch func(name string)

	mu      sync.Mutex
	wanted  map[string]bool
	certs   map[string]*tls.Certificate
	roots   map[string]*x509.CertPool
	changed chan struct{}
}

// NewSecrets has none yet.
func NewSecrets(watch func(name string)) *Secrets {
	return &Secrets{
		Watch: watch, wanted: map[string]bool{}, certs: map[string]*tls.Certificate{}, roots: map[string]*x509.CertPool{}, changed: make(chan struct{}),
	}
}

// Want asks for a secret, if that is new.
func (s *Secrets) Want(name string) {
	s.mu.Lock()
	again := s.wanted[name]
	s.wanted[name] = true
	s.mu.Unlock()
	if !again {
		s.Watch(name)
	}
}

// Missing lists secrets that were asked for and have not come.
func (s *Secrets) Missing() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var missing []string
	for name := range s.wanted {
		if s.certs[name] == nil && s.roots[name] == nil {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	return missing
}

// Apply takes secrets of a response.
func (s *Secrets) Apply(change discovery.Change) error {
	var errs []error
	for name, resource := range change.Set {
		var secret tlsv3.Secret
		if err := resource.UnmarshalTo(&secret); err != nil {
			return err
		}
		if err := s.set(name, &secret); err != nil {
			errs = append(errs, fmt.Errorf("secret %s: %w", name, err))
		}
	}
	s.mu.Lock()
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	return errors.Join(errs...)
}

func (s *Secrets) set(name string, secret *tlsv3.Secret) error {
	switch kind := secret.GetType().(type) {
	case *tlsv3.Secret_TlsCertificate:
		chain, err := read(kind.TlsCertificate.GetCertificateChain())
		if err != nil {
			return err
		}
		key, err := read(kind.TlsCertificate.GetPrivateKey())
		if err != nil {
			return err
		}
		cert, err := tls.X509KeyPair(chain, key)
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.certs[name] = &cert
	case *tlsv3.Secret_ValidationContext:
		pool, err := readRoots(kind.ValidationContext.GetTrustedCa())
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.roots[name] = pool
	default:
		return fmt.Errorf("%T is not understood", kind)
	}
	return nil
}

func readRoots(source *corev3.DataSource) (*x509.CertPool, error) {
	pem, err := read(source)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("no root certificate")
	}
	return pool, nil
}

func read(source *corev3.DataSource) ([]byte, error) {
	switch s := source.GetSpecifier().(type) {
	case *corev3.DataSource_InlineBytes:
		return s.InlineBytes, nil
	case *corev3.DataSource_InlineString:
		return []byte(s.InlineString), nil
	case *corev3.DataSource_Filename:
		return os.ReadFile(s.Filename)
	}
	return nil, fmt.Errorf("source %T is not understood", source.GetSpecifier())
}

// Certificate waits for a certificate.
func (s *Secrets) Certificate(ctx context.Context, name string) (*tls.Certificate, error) {
	return await(ctx, s, s.certs, name)
}

// Roots waits for roots.
func (s *Secrets) Roots(ctx context.Context, name string) (*x509.CertPool, error) {
	return await(ctx, s, s.roots, name)
}

func await[T any](ctx context.Context, s *Secrets, from map[string]*T, name string) (*T, error) {
	for {
		s.mu.Lock()
		value, changed := from[name], s.changed
		s.mu.Unlock()
		if value != nil {
			return value, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for secret %s: %w", name, ctx.Err())
		}
	}
}
