// Package connectivity proves redirection on the nodes of a cluster: it starts two small pods on a node, and an application in one of
// them connects to the other. Whoever takes such a connection says who it is, so the answer shows where the rules sent the connection.
package connectivity

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
)

// Role is who took a connection.
type Role string

// The roles. A pod has all three: the application, and a stand-in for the proxy that listens where proxies do.
const (
	RoleApplication Role = "application"
	RoleOutbound    Role = "outbound" // the proxy, on its port for outbound traffic
	RoleInbound     Role = "inbound"  // the proxy, on its port for inbound traffic
)

// The ports of both pods. Annotations of the pods set the proxy's ports and the excluded ones, so the agents' defaults do not matter.
const (
	portOutbound uint16 = 15001
	portInbound  uint16 = 15006
	portCaptured uint16 = 8080 // captured in both directions
	portEntering uint16 = 8081 // captured where it enters a pod, not where it leaves one
	portExcluded uint16 = 8082 // captured nowhere
)

// Limits of one connection, which has one request. The proxy's own connection has to end before its client gives up.
const (
	connectionLimit = 5 * time.Second
	dialLimit       = 2 * time.Second
	nextLimit       = time.Second
	maxAnswer       = 4096
)

// headerPassedOn is set in requests that a proxy has passed on.
const headerPassedOn = "Passed-On"

// Answer is the answer of the program that took the connection, as JSON.
type Answer struct {
	Role Role           `json:"role"`
	Pod  string         `json:"pod"`
	Dst  netip.AddrPort `json:"dst"` // the destination before redirection
	// Next is the answer to the connection that the proxy's outbound side makes to Dst by itself. Fault says why there is none.
	Next  *Answer `json:"next,omitempty"`
	Fault string  `json:"fault,omitempty"`
}

// Server answers requests in one of the two pods.
type Server struct {
	Pod string
	// Dst returns the destination that the client of a connection dialled, before redirection.
	Dst func(net.Conn) netip.AddrPort
	// Dial makes the proxy's own connections; nil means the ordinary way.
	Dial Dialer
}

// Dialer is net.Dialer's DialContext.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

// ServeProxy listens as the proxy does until ctx ends.
func (s Server) ServeProxy(ctx context.Context) error {
	return s.serve(ctx, map[uint16]Role{portOutbound: RoleOutbound, portInbound: RoleInbound})
}

// ServeApplication listens as the application does until ctx ends.
func (s Server) ServeApplication(ctx context.Context) error {
	return s.serve(ctx, map[uint16]Role{portCaptured: RoleApplication, portEntering: RoleApplication, portExcluded: RoleApplication})
}

func (s Server) serve(ctx context.Context, ports map[uint16]Role) error {
	g, ctx := errgroup.WithContext(ctx)
	for port, role := range ports {
		var config net.ListenConfig
		l, err := config.Listen(ctx, "tcp", fmt.Sprintf(":%d", port)) // both families
		if err != nil {
			return fmt.Errorf("listen as the %s side: %w", role, err)
		}
		g.Go(func() error { return s.accept(ctx, l, role) })
	}
	return g.Wait()
}

// dstKey is the key of a connection's destination in the contexts of its requests.
type dstKey struct{}

// accept says who takes the requests of a listener, until ctx ends.
func (s Server) accept(ctx context.Context, l net.Listener, role Role) error {
	server := &http.Server{
		ReadTimeout: connectionLimit, WriteTimeout: connectionLimit,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, dstKey{}, s.Dst(c))
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a := Answer{Role: role, Pod: s.Pod}
			a.Dst, _ = r.Context().Value(dstKey{}).(netip.AddrPort)
			if role == RoleOutbound {
				a.Next, a.Fault = s.passOn(r.Context(), a.Dst, r.Header)
			}
			_ = json.NewEncoder(w).Encode(a) // the client may have gone
		}),
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // which ends Serve
	if err := server.Serve(l); ctx.Err() == nil {
		return fmt.Errorf("accept as the %s side: %w", role, err)
	}
	return nil
}

// passOn connects to a destination as a proxy does. A request that has been passed on before comes from the proxy itself: that is a loop.
func (s Server) passOn(ctx context.Context, dst netip.AddrPort, request http.Header) (*Answer, string) {
	if request.Get(headerPassedOn) != "" {
		return nil, "the proxy's own connection came back to the proxy"
	}
	a, err := s.Dial.ask(ctx, dst, http.Header{headerPassedOn: {"true"}}, nextLimit)
	if err != nil {
		return nil, err.Error()
	}
	return &a, ""
}

// ask makes one connection and reads its answer. Redirection is decided for each connection, so none is used again.
func (d Dialer) ask(ctx context.Context, dst netip.AddrPort, header http.Header, limit time.Duration) (a Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+dst.String(), http.NoBody) //nolint:gosec // to where a redirected connection was going: it is what the stand-in of a proxy is for
	if err != nil {
		return a, fmt.Errorf("ask %s: %w", dst, err)
	}
	request.Header = header
	response, err := (&http.Transport{DialContext: d, DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		return a, fmt.Errorf("connect: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // only read
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(&a); err != nil {
		return a, fmt.Errorf("ask %s: %w", dst, err)
	}
	return a, nil
}
