package trust

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"istio-pod-network-controller/test/e2e/xdsenvoy/match"
	"istio-pod-network-controller/test/e2e/xdsenvoy/notice"
)

// Context is what both ends' contexts have in common.
type Context struct {
	secrets     *Secrets
	certificate string         // name of a secret; may be empty
	roots       string         // name of a secret; may be empty
	inlineRoots *x509.CertPool // instead
	names       []match.String // one of the peer's has to match one of these; none: any name
	alpn        []string
	required    bool   // server: of the client's certificate
	serverName  string // client
}

// Client reads the context of connections to a server.
func (s *Secrets) Client(board *notice.Board, resource string, c *tlsv3.UpstreamTlsContext) (*Context, error) {
	board.Fields(resource, c, "common_tls_context", "sni", "max_session_keys")
	t, err := s.context(board, resource, c.GetCommonTlsContext())
	if err != nil {
		return nil, err
	}
	t.serverName = c.GetSni()
	return t, nil
}

// Server reads the context of a listener.
func (s *Secrets) Server(board *notice.Board, resource string, c *tlsv3.DownstreamTlsContext) (*Context, error) {
	board.Fields(resource, c, "common_tls_context", "require_client_certificate", "session_timeout", "disable_stateless_session_resumption")
	t, err := s.context(board, resource, c.GetCommonTlsContext())
	if err != nil {
		return nil, err
	}
	t.required = c.GetRequireClientCertificate().GetValue()
	if t.required && t.roots == "" && t.inlineRoots == nil {
		return nil, errors.New("clients' certificates are required and there are no roots")
	}
	return t, nil
}

func (s *Secrets) context(board *notice.Board, resource string, c *tlsv3.CommonTlsContext) (*Context, error) {
	board.Fields(resource, c, "tls_certificate_sds_secret_configs", "combined_validation_context", "validation_context", "validation_context_sds_secret_config", "alpn_protocols", "tls_params")
	t := &Context{secrets: s, alpn: c.GetAlpnProtocols()}
	var err error
	if configs := c.GetTlsCertificateSdsSecretConfigs(); len(configs) > 0 {
		if t.certificate, err = s.want(configs[0]); err != nil {
			return nil, err
		}
	}
	validation := c.GetValidationContext()
	roots := c.GetValidationContextSdsSecretConfig()
	if combined := c.GetCombinedValidationContext(); combined != nil {
		validation, roots = combined.GetDefaultValidationContext(), combined.GetValidationContextSdsSecretConfig()
	}
	if roots != nil {
		if t.roots, err = s.want(roots); err != nil {
			return nil, err
		}
	}
	if validation == nil {
		return t, nil
	}
	return t, t.validate(board, resource, validation)
}

// want asks for a secret of the agent's; a secret from elsewhere is refused.
func (s *Secrets) want(c *tlsv3.SdsSecretConfig) (string, error) {
	for _, service := range c.GetSdsConfig().GetApiConfigSource().GetGrpcServices() {
		if service.GetEnvoyGrpc().GetClusterName() != "sds-grpc" {
			return "", fmt.Errorf("secret %s of %s is not understood", c.GetName(), service)
		}
	}
	if c.GetSdsConfig().GetApiConfigSource() == nil {
		return "", fmt.Errorf("secret %s by %s is not understood", c.GetName(), c.GetSdsConfig())
	}
	s.Want(c.GetName())
	return c.GetName(), nil
}

func (t *Context) validate(board *notice.Board, resource string, v *tlsv3.CertificateValidationContext) (err error) {
	board.Fields(resource, v, "trusted_ca", "match_subject_alt_names", "match_typed_subject_alt_names")
	if v.GetTrustedCa() != nil {
		if t.inlineRoots, err = readRoots(v.GetTrustedCa()); err != nil {
			return err
		}
	}
	names := v.GetMatchSubjectAltNames() //nolint:staticcheck // Istio still sends it
	for _, m := range v.GetMatchTypedSubjectAltNames() {
		names = append(names, m.GetMatcher())
	}
	for _, m := range names {
		is, err := match.NewString(m)
		if err != nil {
			return err
		}
		t.names = append(t.names, is)
	}
	return nil
}

// config has what both ends need. Certificates are verified here, not by Go: their names are SPIFFE identities.
func (t *Context) config(ctx context.Context) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true} //nolint:gosec // verified below
	if t.certificate != "" {
		cert, err := t.secrets.Certificate(ctx, t.certificate)
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{*cert}
	}
	roots := t.inlineRoots
	if t.roots != "" {
		var err error
		if roots, err = t.secrets.Roots(ctx, t.roots); err != nil {
			return nil, err
		}
	}
	if roots != nil {
		c.VerifyConnection = func(state tls.ConnectionState) error { return t.verify(roots, state.PeerCertificates) }
	}
	return c, nil
}

func (t *Context) verify(roots *x509.CertPool, chain []*x509.Certificate) error {
	if len(chain) == 0 {
		if t.required {
			return errors.New("the peer has no certificate")
		}
		return nil
	}
	between := x509.NewCertPool()
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	if _, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return err
	}
	names := namesOf(chain[0])
	if len(t.names) > 0 && !slices.ContainsFunc(t.names, func(is match.String) bool { return slices.ContainsFunc(names, is) }) {
		return fmt.Errorf("the peer %s is not expected here", strings.Join(names, ", "))
	}
	return nil
}

func namesOf(cert *x509.Certificate) []string {
	names := slices.Clone(cert.DNSNames)
	for _, uri := range cert.URIs {
		names = append(names, uri.String())
	}
	return names
}

// Accept makes the server's end of a connection. A client whose protocols are all unknown gets none, as with Envoy.
func (t *Context) Accept(ctx context.Context, c net.Conn) (*tls.Conn, error) {
	config, err := t.config(ctx)
	if err != nil {
		return nil, err
	}
	config.ClientAuth = tls.RequestClientCert
	if t.required {
		config.ClientAuth = tls.RequireAnyClientCert
	}
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		forClient := config.Clone()
		if slices.ContainsFunc(t.alpn, func(p string) bool { return slices.Contains(hello.SupportedProtos, p) }) {
			forClient.NextProtos = t.alpn
		}
		return forClient, nil
	}
	conn := tls.Server(c, config)
	return conn, conn.HandshakeContext(ctx)
}

// Dial makes the client's end. The protocols are the context's unless others are given.
func (t *Context) Dial(ctx context.Context, c net.Conn, alpn []string) (*tls.Conn, error) {
	config, err := t.config(ctx)
	if err != nil {
		return nil, err
	}
	config.ServerName, config.NextProtos = t.serverName, t.alpn
	if alpn != nil {
		config.NextProtos = alpn
	}
	conn := tls.Client(c, config)
	return conn, conn.HandshakeContext(ctx)
}

// InMesh reports whether a client's context is for peers of the mesh.
func (t *Context) InMesh() bool { return slices.Contains(t.alpn, "istio") }

// Peer is who the other end of a connection is, and who this end was to it.
type Peer struct {
	Names []string // of the certificate
	Cert  *x509.Certificate
	Self  string // own identity
}

// PeerOf returns nil if the other end has shown no certificate.
func (t *Context) PeerOf(state tls.ConnectionState) *Peer {
	if len(state.PeerCertificates) == 0 {
		return nil
	}
	p := &Peer{Cert: state.PeerCertificates[0], Names: namesOf(state.PeerCertificates[0])}
	t.secrets.mu.Lock()
	defer t.secrets.mu.Unlock()
	if own := t.secrets.certs[t.certificate]; own != nil && own.Leaf != nil && len(own.Leaf.URIs) > 0 {
		p.Self = own.Leaf.URIs[0].String()
	}
	return p
}

// Forwarded is the peer's element of the header X-Forwarded-Client-Cert.
func (p *Peer) Forwarded() string {
	sum := sha256.Sum256(p.Cert.Raw)
	parts := []string{"By=" + p.Self, "Hash=" + hex.EncodeToString(sum[:]), fmt.Sprintf("Subject=%q", p.Cert.Subject.String())}
	for _, uri := range p.Cert.URIs {
		parts = append(parts, "URI="+uri.String())
	}
	for _, name := range p.Cert.DNSNames {
		parts = append(parts, "DNS="+name)
	}
	return strings.Join(parts, ";")
}
