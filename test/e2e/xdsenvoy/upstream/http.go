package upstream

import (
	"context"
	"net"
	"net/http"
	"time"
)

// Protocols that peers of the mesh agree on, as Istio's filter istio.alpn has them.
var (
	inMesh1 = []string{"istio-http/1.1", "istio", "http/1.1"}
	inMesh2 = []string{"istio-h2", "istio", "h2"}
)

// idleLimit is after how long an unused connection is closed.
const idleLimit = 90 * time.Second

// transports pool connections, which belong to an endpoint's address and a socket.
type transports struct {
	http1, http2 *http.Transport
}

func (s *socket) makeTransports() {
	s.http1, s.http2 = s.transport(inMesh1), s.transport(inMesh2)
	s.http1.Protocols.SetHTTP1(true)
	// Security is the dialler's matter: for the transport all connections are plain.
	s.http2.Protocols.SetUnencryptedHTTP2(true)
}

func (s *socket) transport(alpn []string) *http.Transport {
	if s.tls == nil || !s.tls.InMesh() || s.cluster.keepALPN {
		alpn = nil
	}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := s.dial(ctx, network, address, alpn)
			if err != nil {
				return nil, err
			}
			return plain{conn}, nil
		},
		Protocols:           new(http.Protocols),
		DisableCompression:  true,
		IdleConnTimeout:     idleLimit,
		MaxIdleConnsPerHost: 100,
	}
}

// plain hides a connection's type from package http, which would ask a TLS connection for its protocol.
type plain struct{ net.Conn }

// RoundTrip sends a request to an endpoint.
func (c *Cluster) RoundTrip(r *http.Request, e Endpoint, downstreamMajor int) (*http.Response, error) {
	r.URL.Scheme, r.URL.Host = "http", e.Address
	s := c.socketOf(e)
	if _, as := sourceOf(r.Context()); as {
		r.Close = true // the connection is one client's
	}
	if c.http2 || c.likeDownstream && downstreamMajor == 2 {
		return s.http2.RoundTrip(r)
	}
	return s.http1.RoundTrip(r)
}

// Secured reports whether an endpoint is talked to by TLS.
func (c *Cluster) Secured(e Endpoint) bool { return c.socketOf(e).tls != nil }
