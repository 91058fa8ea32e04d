package trust

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"istio-pod-network-controller/test/e2e/xdsenvoy/discovery"
	"istio-pod-network-controller/test/e2e/xdsenvoy/notice"
)

// authority is a mesh's root.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	a := authority{key: newKey(t)}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

func encode(kind string, der []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})}}
}

// secretsOf has a certificate with a name, as the agent sends it.
func (a authority) secretsOf(t *testing.T, name string) *Secrets {
	t.Helper()
	id, err := url.Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	key := newKey(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), URIs: []*url.URL{id}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	s := NewSecrets(func(string) {})
	for name, m := range map[string]*tlsv3.Secret{
		"default": {Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: encode("CERTIFICATE", der), PrivateKey: encode("PRIVATE KEY", secret)}}},
		"ROOTCA":  {Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: encode("CERTIFICATE", a.cert.Raw)}}},
	} {
		packed, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Apply(discovery.Change{Type: discovery.Secrets, Set: map[string]*anypb.Any{name: packed}}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

const sds = `{"apiConfigSource": {"apiType": "GRPC", "grpcServices": [{"envoyGrpc": {"clusterName": "sds-grpc"}}]}}`

// common is a context as istiod sends it, with the names that the peer may have.
func common(names, alpn string) string {
	return `"commonTlsContext": {"alpnProtocols": [` + alpn + `], "tlsCertificateSdsSecretConfigs": [{"name": "default", "sdsConfig": ` + sds + `}],
	  "combinedValidationContext": {"defaultValidationContext": {"matchSubjectAltNames": [` + names + `]}, "validationContextSdsSecretConfig": {"name": "ROOTCA", "sdsConfig": ` + sds + `}}}`
}

func (s *Secrets) server(t *testing.T, names string) *Context {
	t.Helper()
	m := &tlsv3.DownstreamTlsContext{}
	if err := protojson.Unmarshal([]byte(`{"requireClientCertificate": true, `+common(names, `"h2", "http/1.1"`)+`}`), m); err != nil {
		t.Fatal(err)
	}
	c, err := s.Server(&notice.Board{Log: slog.New(slog.DiscardHandler)}, "listener", m)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (s *Secrets) client(t *testing.T, names string) *Context {
	t.Helper()
	m := &tlsv3.UpstreamTlsContext{}
	if err := protojson.Unmarshal([]byte(`{"sni": "outbound_.80_._.echo", `+common(names, `"istio"`)+`}`), m); err != nil {
		t.Fatal(err)
	}
	c, err := s.Client(&notice.Board{Log: slog.New(slog.DiscardHandler)}, "cluster", m)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// connection returns both ends of one.
func connection(t *testing.T) (here, there net.Conn) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // one is enough
	if there, err = new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if here, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return here, there
}

// greet joins both ends, and returns the server's with what either says of the other.
func greet(t *testing.T, server, client *Context, alpn []string) (conn *tls.Conn, errServer, errClient error) {
	t.Helper()
	here, there := connection(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	t.Cleanup(func() {
		cancel()
		_, _ = here.Close(), there.Close()
	})
	done := make(chan error, 1)
	go func() {
		c, err := client.Dial(ctx, there, alpn)
		if err != nil {
			_ = there.Close()
		} else {
			_, err = c.Read(make([]byte, 1)) // in TLS 1.3 the server's refusal comes after the handshake
		}
		done <- err
	}()
	conn, errServer = server.Accept(ctx, here)
	if errServer == nil {
		_, _ = conn.Write([]byte{1}) // the client may have gone
	} else {
		_ = here.Close()
	}
	return conn, errServer, <-done
}

func TestContext_bothEndsKnowEachOther(t *testing.T) {
	a := newAuthority(t)
	server, client := a.secretsOf(t, "spiffe://m/ns/a/sa/server").server(t, `{"prefix": "spiffe://m/"}`), a.secretsOf(t, "spiffe://m/ns/a/sa/client").client(t, `{"exact": "spiffe://m/ns/a/sa/server"}`)
	conn, errServer, errClient := greet(t, server, client, []string{"istio-http/1.1", "istio", "http/1.1"})
	if errServer != nil || errClient != nil {
		t.Fatalf("server: %v, client: %v", errServer, errClient)
	}
	peer := server.PeerOf(conn.ConnectionState())
	if !slices.Equal(peer.Names, []string{"spiffe://m/ns/a/sa/client"}) || peer.Self != "spiffe://m/ns/a/sa/server" {
		t.Errorf("the peer is %+v", peer)
	}
	if got := peer.Forwarded(); !strings.HasPrefix(got, "By=spiffe://m/ns/a/sa/server;Hash=") || !strings.HasSuffix(got, `;Subject="";URI=spiffe://m/ns/a/sa/client`) {
		t.Errorf("the application is told %s", got)
	}
	if state := conn.ConnectionState(); state.NegotiatedProtocol != "http/1.1" || state.ServerName != "outbound_.80_._.echo" {
		t.Errorf("agreed are %q and %q", state.NegotiatedProtocol, state.ServerName)
	}
	if !client.InMesh() {
		t.Error("the client is not in the mesh")
	}
}

func TestContext_refuses(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	const serverName, clientName = "spiffe://m/ns/a/sa/server", "spiffe://m/ns/a/sa/client"
	for name, c := range map[string]struct{ server, client *Context }{
		"a server with another name":     {a.secretsOf(t, serverName).server(t, ""), a.secretsOf(t, clientName).client(t, `{"exact": "spiffe://m/ns/a/sa/somebody"}`)},
		"a client with another name":     {a.secretsOf(t, serverName).server(t, `{"prefix": "spiffe://other/"}`), a.secretsOf(t, clientName).client(t, "")},
		"a client of another mesh":       {a.secretsOf(t, serverName).server(t, ""), other.secretsOf(t, clientName).client(t, "")},
		"a client without a certificate": {a.secretsOf(t, serverName).server(t, ""), &Context{secrets: NewSecrets(func(string) {})}},
		"a server of another mesh":       {other.secretsOf(t, serverName).server(t, ""), a.secretsOf(t, clientName).client(t, "")},
	} {
		t.Run(name, func(t *testing.T) {
			if _, errServer, errClient := greet(t, c.server, c.client, nil); errServer == nil && errClient == nil {
				t.Error("both are content")
			}
		})
	}
}

// A connection waits for a secret that is on its way.
func TestContext_waitsForSecrets(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := NewSecrets(func(string) {}).server(t, "").config(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without the secret: %v", err)
	}
}

func TestSecrets_missing(t *testing.T) {
	var asked []string
	s := NewSecrets(func(name string) { asked = append(asked, name) })
	s.Want("b")
	s.Want("a")
	s.Want("b")
	if !slices.Equal(asked, []string{"b", "a"}) || !slices.Equal(s.Missing(), []string{"a", "b"}) {
		t.Errorf("asked for are %v, missing %v", asked, s.Missing())
	}
}
