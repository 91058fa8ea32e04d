package listen

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"istio-pod-network-controller/test/e2e/xdsenvoy/match"
	"istio-pod-network-controller/test/e2e/xdsenvoy/rbac"
	"istio-pod-network-controller/test/e2e/xdsenvoy/trust"
)

// chain is a filter chain: which connections it takes, and what it does with them.
type chain struct {
	name     string
	proto    *listenerv3.FilterChain
	ranges   []netip.Prefix
	tls      *trust.Context // nil: none is terminated
	rules    []*rbac.Rules
	terminal terminal
	closed   string // why no connection is served; empty: all are
	leaving  atomic.Bool

	mu    sync.Mutex
	conns map[*conn]bool
}

// terminal is the last filter. It returns when the connection is done with, or handed over.
type terminal interface {
	serve(ctx context.Context, c *conn)
}

// Filters that change nothing that a test looks at: telemetry, and what is configured for routes.
var harmless = []string{
	"istio.metadata_exchange", "istio.stats", "istio.alpn", "istio.peer_metadata", "envoy.filters.network.metadata_exchange", "envoy.filters.http.peer_metadata",
	"envoy.filters.http.grpc_stats", "envoy.filters.http.fault", "envoy.filters.http.cors", "envoy.filters.http.router", "envoy.filters.http.grpc_web",
	"envoy.filters.http.compressor.brotli", "envoy.filters.http.compressor.gzip", "envoy.filters.http.compressor.zstd", "envoy.filters.http.stateful_session",
}

func (l *Listeners) parseChain(of *listener, m *listenerv3.FilterChain) (*chain, error) {
	l.Board.Fields(of.name, m, "name", "filter_chain_match", "filters", "transport_socket", "metadata", "transport_socket_connect_timeout")
	l.Board.Fields(of.name, m.GetFilterChainMatch(), "destination_port", "prefix_ranges", "transport_protocol", "application_protocols", "server_names")
	c := &chain{name: m.GetName(), proto: m, conns: map[*conn]bool{}}
	for _, r := range m.GetFilterChainMatch().GetPrefixRanges() {
		prefix, err := match.NewPrefix(r)
		if err != nil {
			return nil, err
		}
		c.ranges = append(c.ranges, prefix)
	}
	switch s := m.GetTransportSocket(); s.GetName() {
	case "", "envoy.transport_sockets.raw_buffer":
	case "envoy.transport_sockets.tls":
		var context tlsv3.DownstreamTlsContext
		err := s.GetTypedConfig().UnmarshalTo(&context)
		if err != nil {
			return nil, err
		}
		if c.tls, err = l.Secrets.Server(l.Board, of.name, &context); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("transport socket %s is not understood", s.GetName())
	}
	for _, f := range m.GetFilters() {
		if err := l.parseFilter(of, c, f); err != nil {
			return nil, fmt.Errorf("filter %s: %w", f.GetName(), err)
		}
	}
	if c.terminal == nil {
		l.close(c, "no filter that ends it")
	}
	return c, nil
}

func (l *Listeners) parseFilter(of *listener, c *chain, f *listenerv3.Filter) (err error) {
	switch f.GetName() {
	case "envoy.filters.network.tcp_proxy":
		c.terminal, err = l.newBytes(of, f)
	case "envoy.filters.network.http_connection_manager":
		c.terminal, err = l.newRequests(of, c, f)
	case "envoy.filters.network.rbac":
		var m networkrbacv3.RBAC
		if err = f.GetTypedConfig().UnmarshalTo(&m); err == nil {
			c.rules = append(c.rules, rbac.New(m.GetRules(), l.Log))
		}
	default:
		if !slices.Contains(harmless, f.GetName()) {
			l.close(c, "filter "+f.GetName()+" is not understood")
		}
	}
	return err
}

// close has a chain serve nobody: a filter without its effect may let somebody through.
func (l *Listeners) close(c *chain, reason string) {
	l.Log.Error("filter chain serves nobody", "chain", c.name, "reason", reason)
	c.closed = reason
}

// choose finds the chain of a connection as Envoy does: criterion by criterion in this order, each by its most specific match, without going back.
func (p *listener) choose(c *conn) *chain {
	chains := p.chains
	of := func(ch *chain) *listenerv3.FilterChainMatch { return ch.proto.GetFilterChainMatch() }
	chains = narrow(chains, func(ch *chain) int {
		return exact(of(ch).GetDestinationPort() != nil, of(ch).GetDestinationPort().GetValue() == uint32(c.target.Port()))
	})
	chains = narrow(chains, func(ch *chain) int { return longest(ch.ranges, c.target.Addr()) })
	chains = narrow(chains, func(ch *chain) int { return serverName(of(ch).GetServerNames(), c.hello.serverName) })
	chains = narrow(chains, func(ch *chain) int {
		return exact(of(ch).GetTransportProtocol() != "", of(ch).GetTransportProtocol() == c.hello.transport)
	})
	chains = narrow(chains, func(ch *chain) int {
		wanted := of(ch).GetApplicationProtocols()
		return exact(len(wanted) > 0, slices.ContainsFunc(c.hello.protocols, func(p string) bool { return slices.Contains(wanted, p) }))
	})
	if len(chains) == 0 {
		return p.fallback
	}
	return chains[0]
}

// narrow keeps the chains that fit best. 0 fits without a criterion, a negative number does not fit.
func narrow(chains []*chain, fit func(*chain) int) []*chain {
	best := 0
	for _, c := range chains {
		best = max(best, fit(c))
	}
	var kept []*chain
	for _, c := range chains {
		if fit(c) == best {
			kept = append(kept, c)
		}
	}
	return kept
}

func exact(set, fits bool) int {
	switch {
	case !set:
		return 0
	case fits:
		return 1
	}
	return -1
}

func longest(ranges []netip.Prefix, a netip.Addr) int {
	if len(ranges) == 0 {
		return 0
	}
	best := -1
	for _, r := range ranges {
		if r.Contains(a) {
			best = max(best, r.Bits()+1)
		}
	}
	return best
}

// longestName is more than a DNS name has characters.
const longestName = 256

func serverName(wanted []string, name string) int {
	if len(wanted) == 0 {
		return 0
	}
	best := -1
	for _, w := range wanted {
		if w == name {
			return longestName
		}
		if suffix, wild := strings.CutPrefix(w, "*"); wild && strings.HasSuffix(name, suffix) {
			best = max(best, len(suffix))
		}
	}
	return best
}

// serve does with a connection what the chain is for.
func (ch *chain) serve(ctx context.Context, c *conn) {
	ch.track(c)
	if ch.closed != "" {
		c.end("chain serves nobody: " + ch.closed)
		return
	}
	if ch.tls != nil {
		if err := c.secure(ctx, ch.tls); err != nil {
			c.end(err.Error())
			return
		}
	}
	for _, rules := range ch.rules {
		if allowed, policy := rules.Allowed(c.subject()); !allowed {
			c.listeners.Stats.Counter("tcp.rbac.denied").Add(1)
			c.end("denied by policy: " + policy)
			return
		}
	}
	ch.terminal.serve(ctx, c)
}

func (ch *chain) track(c *conn) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.conns[c] = true
	c.onClose = func() {
		ch.mu.Lock()
		defer ch.mu.Unlock()
		delete(ch.conns, c)
	}
}

// cut ends the chain's connections: who serves them finds them closed.
func (ch *chain) cut() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	for c := range ch.conns {
		_ = c.socket.Close()
	}
}
