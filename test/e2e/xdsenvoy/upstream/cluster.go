package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"istio-pod-network-controller/test/e2e/xdsenvoy/trust"
)

// ErrNoEndpoint is the lack of a healthy endpoint.
var ErrNoEndpoint = errors.New("no healthy upstream")

// Cluster is a group of endpoints.
type Cluster struct {
	Name     string
	all      *Clusters
	proto    *clusterv3.Cluster
	original bool         // connections go where they were going
	service  string       // of the discovered endpoints; empty: fixed
	fixed    *assignment  // of the cluster itself
	sources  []netip.Addr // of connections, one of a family at most
	timeout  time.Duration
	sockets  []*socket
	turn     atomic.Uint64

	http2, likeDownstream bool
	keepALPN              bool // the cluster's, also for HTTP
}

// parse reads a cluster.
func (c *Clusters) parse(m *clusterv3.Cluster) (*Cluster, error) {
	c.board.Fields(m.GetName(), m, "name", "alt_stat_name", "type", "eds_cluster_config", "connect_timeout", "load_assignment", "lb_policy", "upstream_bind_config",
		"typed_extension_protocol_options", "transport_socket", "transport_socket_matches", "metadata", "circuit_breakers", "common_lb_config", "upstream_connection_options",
		"max_requests_per_connection", "dns_lookup_family", "dns_refresh_rate", "respect_dns_ttl", "cleanup_interval", "filters", "dns_jitter", "outlier_detection", "load_balancing_policy")
	cluster := &Cluster{Name: m.GetName(), all: c, proto: m, timeout: 5 * time.Second}
	if m.GetConnectTimeout() != nil {
		cluster.timeout = m.GetConnectTimeout().AsDuration()
	}
	switch m.GetType() {
	case clusterv3.Cluster_EDS:
		cluster.service = m.GetEdsClusterConfig().GetServiceName()
		if cluster.service == "" {
			cluster.service = m.GetName()
		}
	case clusterv3.Cluster_ORIGINAL_DST:
		cluster.original = true
	default: // names are resolved when they are dialled
		cluster.fixed = c.assign(m.GetName(), m.GetLoadAssignment())
	}
	if m.GetClusterType() != nil {
		return nil, fmt.Errorf("cluster type %s is not understood", m.GetClusterType().GetName())
	}
	if err := cluster.readSources(m.GetUpstreamBindConfig()); err != nil {
		return nil, err
	}
	istio := m.GetMetadata().GetFilterMetadata()["istio"].GetFields()
	cluster.keepALPN = istio["alpn_override"].GetStringValue() == "false"
	if err := cluster.readProtocol(m); err != nil {
		return nil, err
	}
	return cluster, cluster.readSockets(m)
}

// readSources reads the addresses that connections come from. By them Istio's rules know a proxy's connections to its own application.
func (c *Cluster) readSources(m *corev3.BindConfig) error {
	c.all.board.Fields(c.Name, m, "source_address", "extra_source_addresses")
	all := []*corev3.SocketAddress{m.GetSourceAddress()}
	for _, extra := range m.GetExtraSourceAddresses() {
		all = append(all, extra.GetAddress())
	}
	for _, source := range all {
		if source == nil {
			continue
		}
		address, err := netip.ParseAddr(source.GetAddress())
		if err != nil {
			return err
		}
		c.sources = append(c.sources, address)
	}
	return nil
}

func (c *Cluster) readProtocol(m *clusterv3.Cluster) error {
	options, ok := m.GetTypedExtensionProtocolOptions()["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
	if !ok {
		return nil
	}
	var h httpv3.HttpProtocolOptions
	if err := options.UnmarshalTo(&h); err != nil {
		return err
	}
	c.http2 = h.GetExplicitHttpConfig().GetHttp2ProtocolOptions() != nil
	c.likeDownstream = h.GetUseDownstreamProtocolConfig() != nil
	return nil
}

// readSockets reads how connections are secured: each endpoint takes the first whose match it has.
func (c *Cluster) readSockets(m *clusterv3.Cluster) error {
	for _, s := range m.GetTransportSocketMatches() {
		if err := c.addSocket(s.GetMatch(), s.GetTransportSocket()); err != nil {
			return fmt.Errorf("transport socket %s: %w", s.GetName(), err)
		}
	}
	return c.addSocket(nil, m.GetTransportSocket())
}

func (c *Cluster) addSocket(match *structpb.Struct, s *corev3.TransportSocket) error {
	socket := &socket{cluster: c, match: match}
	switch s.GetName() {
	case "", "envoy.transport_sockets.raw_buffer":
	case "envoy.transport_sockets.tls":
		var context tlsv3.UpstreamTlsContext
		err := s.GetTypedConfig().UnmarshalTo(&context)
		if err != nil {
			return err
		}
		if socket.tls, err = c.all.secrets.Client(c.all.board, c.Name, &context); err != nil {
			return err
		}
	default:
		return fmt.Errorf("transport socket %s is not understood", s.GetName())
	}
	socket.makeTransports()
	c.sockets = append(c.sockets, socket)
	return nil
}

func (c *Cluster) closeIdle() {
	for _, s := range c.sockets {
		s.http1.CloseIdleConnections()
		s.http2.CloseIdleConnections()
	}
}

// Pick chooses the endpoint for a connection or request that was going to an address.
func (c *Cluster) Pick(original netip.AddrPort) (Endpoint, error) {
	if c.original {
		if !original.IsValid() {
			return Endpoint{}, ErrNoEndpoint
		}
		return Endpoint{Network: "tcp", Address: original.String()}, nil
	}
	endpoints := c.fixed
	if c.service != "" {
		endpoints = c.all.endpointsOf(c.service)
	}
	e, ok := endpoints.pick(c.turn.Add(1))
	if !ok {
		return Endpoint{}, ErrNoEndpoint
	}
	return e, nil
}

// socketOf chooses how to talk to an endpoint.
func (c *Cluster) socketOf(e Endpoint) *socket {
	for _, s := range c.sockets {
		if s.matches(e.match) {
			return s
		}
	}
	return c.sockets[len(c.sockets)-1]
}

// Dial connects to an endpoint, for bytes.
func (c *Cluster) Dial(ctx context.Context, e Endpoint) (net.Conn, error) {
	return c.socketOf(e).dial(ctx, e.Network, e.Address, nil)
}

// socket is one way to talk to endpoints.
type socket struct {
	cluster *Cluster
	match   *structpb.Struct
	tls     *trust.Context // nil: plain
	transports
}

func (s *socket) matches(metadata *structpb.Struct) bool {
	for key, want := range s.match.GetFields() {
		if !proto.Equal(metadata.GetFields()[key], want) {
			return false
		}
	}
	return true
}

// ConnectError is a failure before anything was sent, so that a request can go elsewhere.
type ConnectError struct{ error }

// Unwrap returns the cause.
func (e ConnectError) Unwrap() error { return e.error }

func (s *socket) dial(ctx context.Context, network, address string, alpn []string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cluster.timeout)
	defer cancel()
	dialer := net.Dialer{}
	if host, err := netip.ParseAddrPort(address); err == nil {
		for _, source := range s.cluster.sources {
			if host.Addr().Unmap().Is4() == source.Is4() {
				dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
			}
		}
	}
	if from, as := sourceOf(ctx); as {
		dialer.LocalAddr, dialer.Control = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from.address, 0)), from.control
	}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, ConnectError{err}
	}
	if s.tls == nil {
		return conn, nil
	}
	secured, err := s.tls.Dial(ctx, conn, alpn)
	if err != nil {
		_ = conn.Close()
		return nil, ConnectError{fmt.Errorf("secure the connection to %s: %w", address, err)}
	}
	return secured, nil
}
