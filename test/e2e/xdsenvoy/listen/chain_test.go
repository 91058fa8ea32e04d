package listen

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"istio-pod-network-controller/test/e2e/xdsenvoy/notice"
	"istio-pod-network-controller/test/e2e/xdsenvoy/route"
	"istio-pod-network-controller/test/e2e/xdsenvoy/stats"
	"istio-pod-network-controller/test/e2e/xdsenvoy/trust"
	"istio-pod-network-controller/test/e2e/xdsenvoy/upstream"
)

func newListeners(t *testing.T) *Listeners {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	board, secrets := &notice.Board{Log: log}, trust.NewSecrets(func(string) {})
	return New(Config{
		Clusters: upstream.NewClusters(secrets, board), Routes: route.NewTables(board), Secrets: secrets, Stats: stats.New(), Board: board, Log: log, DrainTime: time.Second,
	})
}

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	packed, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

// bytesTo is a chain that passes bytes on.
func bytesTo(t *testing.T, name string, match *listenerv3.FilterChainMatch) *listenerv3.FilterChain {
	t.Helper()
	config := pack(t, &tcpproxyv3.TcpProxy{ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: name}})
	return &listenerv3.FilterChain{Name: name, FilterChainMatch: match, Filters: []*listenerv3.Filter{
		{Name: "envoy.filters.network.tcp_proxy", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: config}},
	}}
}

func at(address string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func TestChoose_findsTheChain(t *testing.T) {
	port := wrapperspb.UInt32
	m := &listenerv3.Listener{Name: "virtualInbound", Address: at("0.0.0.0", 15006), FilterChains: []*listenerv3.FilterChain{
		bytesTo(t, "itself", &listenerv3.FilterChainMatch{DestinationPort: port(15006)}),
		bytesTo(t, "any mesh", &listenerv3.FilterChainMatch{TransportProtocol: "tls", ApplicationProtocols: []string{"istio"}}),
		bytesTo(t, "any plain", &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer"}),
		bytesTo(t, "any HTTP", &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer", ApplicationProtocols: []string{"http/1.1"}}),
		bytesTo(t, "strict", &listenerv3.FilterChainMatch{DestinationPort: port(8080), TransportProtocol: "tls"}),
		bytesTo(t, "name", &listenerv3.FilterChainMatch{DestinationPort: port(9443), ServerNames: []string{"*.example.com"}}),
		bytesTo(t, "exact name", &listenerv3.FilterChainMatch{DestinationPort: port(9443), ServerNames: []string{"a.example.com"}}),
		bytesTo(t, "range", &listenerv3.FilterChainMatch{DestinationPort: port(7000), PrefixRanges: []*corev3.CidrRange{{AddressPrefix: "10.0.0.0", PrefixLen: wrapperspb.UInt32(8)}}}),
	}}
	l, err := newListeners(t).parse(m)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		target string
		hello  hello
		want   string // empty: none
	}{
		"the listener's own port":                        {"10.0.0.2:15006", hello{transport: "raw_buffer"}, "itself"},
		"mutual TLS to any port":                         {"10.0.0.2:1", hello{transport: "tls", protocols: []string{"istio-peer-exchange", "istio"}}, "any mesh"},
		"plain bytes to any port":                        {"10.0.0.2:1", hello{transport: "raw_buffer"}, "any plain"},
		"plain HTTP to any port":                         {"10.0.0.2:1", hello{transport: "raw_buffer", protocols: []string{"http/1.1"}}, "any HTTP"},
		"a port's chain goes before one for any port":    {"10.0.0.2:8080", hello{transport: "tls"}, "strict"},
		"and there is no way back to those for any port": {"10.0.0.2:8080", hello{transport: "raw_buffer"}, ""},
		"TLS of others to any port":                      {"10.0.0.2:1", hello{transport: "tls", protocols: []string{"h2"}}, ""},
		"a server's name":                                {"10.0.0.2:9443", hello{transport: "tls", serverName: "b.example.com"}, "name"},
		"the name that is most specific":                 {"10.0.0.2:9443", hello{transport: "tls", serverName: "a.example.com"}, "exact name"},
		"an address in a range":                          {"10.1.2.3:7000", hello{transport: "raw_buffer"}, "range"},
		"an address outside":                             {"11.1.2.3:7000", hello{transport: "raw_buffer"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := l.choose(&conn{target: netip.MustParseAddrPort(c.target), hello: c.hello})
			if c.want == "" {
				if got != nil {
					t.Errorf("chosen is %s, want none", got.name)
				}
				return
			}
			if got == nil || got.name != c.want {
				t.Errorf("chosen is %+v, want %s", got, c.want)
			}
		})
	}
}

func TestFind_handsConnectionsToTheListenerOfTheirDestination(t *testing.T) {
	l := newListeners(t)
	for name, address := range map[string]*corev3.Address{"virtualOutbound": at("0.0.0.0", 15001), "0.0.0.0_80": at("0.0.0.0", 80), "10.96.0.10_80": at("10.96.0.10", 80), "::_80": at("::", 80)} {
		if err := l.AddStatic(&listenerv3.Listener{Name: name, Address: address, FilterChains: []*listenerv3.FilterChain{bytesTo(t, "x", nil)}}); err != nil {
			t.Fatal(err)
		}
	}
	for target, want := range map[string]string{"10.96.0.10:80": "10.96.0.10_80", "10.96.0.11:80": "0.0.0.0_80", "[fd00::1]:80": "::_80", "10.96.0.10:81": ""} {
		got := l.find(netip.MustParseAddrPort(target))
		if want == "" && got != nil || want != "" && (got == nil || got.name != want) {
			t.Errorf("%s goes to %+v, want %q", target, got, want)
		}
	}
}

// What is not understood may let somebody through, so such a chain serves nobody; and a listener that cannot be read is refused as a whole.
func TestParse_ofUnknownFilters_isClosedOrRefused(t *testing.T) {
	l := newListeners(t)
	unknown := bytesTo(t, "x", nil)
	unknown.Filters = append([]*listenerv3.Filter{{Name: "envoy.filters.network.ext_authz"}}, unknown.Filters...)
	p, err := l.parse(&listenerv3.Listener{Name: "a", Address: at("0.0.0.0", 1), FilterChains: []*listenerv3.FilterChain{unknown}})
	if err != nil || p.chains[0].closed == "" {
		t.Errorf("parsed is %+v, %v", p, err)
	}
	for name, m := range map[string]*listenerv3.Listener{
		"a listener filter":        {ListenerFilters: []*listenerv3.ListenerFilter{{Name: "envoy.filters.listener.proxy_protocol"}}},
		"a way of securing":        {FilterChains: []*listenerv3.FilterChain{{TransportSocket: &corev3.TransportSocket{Name: "envoy.transport_sockets.alts"}}}},
		"a configuration of bytes": {FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{Name: "envoy.filters.network.tcp_proxy"}}}}},
	} {
		m.Name, m.Address = "b", at("0.0.0.0", 2)
		if _, err := l.parse(m); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
