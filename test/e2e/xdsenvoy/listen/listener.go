// Package listen accepts connections: listeners, their filter chains, and what the chains do with bytes and with requests.
package listen

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	originalsrcv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_src/v3"

	"istio-pod-network-controller/test/e2e/xdsenvoy/stats"
	"istio-pod-network-controller/test/e2e/xdsenvoy/upstream"
)

// listener is a listener's configuration. It has sockets of its own only if it is bound; connections come to others by their destination.
type listener struct {
	name      string
	proto     *listenerv3.Listener
	addresses []string
	bound     bool
	inbound   bool
	// original: the destination before it was redirected. handOff: its listener takes over.
	original, handOff bool
	// transparent: it takes connections to any address. asClient: connections to endpoints come from the client's address, with mark on their packets.
	transparent, asClient bool
	mark                  uint32
	inspectors
	chains   []*chain
	fallback *chain

	active, total, unmatched *stats.Value
}

func (l *Listeners) parse(m *listenerv3.Listener) (*listener, error) {
	l.Board.Fields(m.GetName(), m, "name", "address", "additional_addresses", "filter_chains", "default_filter_chain", "listener_filters", "listener_filters_timeout",
		"continue_on_listener_filters_timeout", "traffic_direction", "use_original_dst", "bind_to_port", "access_log", "ignore_global_conn_limit",
		"transparent", "max_connections_to_accept_per_socket_event", "connection_balance_config", "enable_reuse_port", "metadata", "bypass_overload_manager", "per_connection_buffer_limit_bytes")
	p := &listener{
		name: m.GetName(), proto: m, bound: m.GetBindToPort() == nil || m.GetBindToPort().GetValue(), inbound: m.GetTrafficDirection() == corev3.TrafficDirection_INBOUND,
		transparent: m.GetTransparent().GetValue(), handOff: m.GetUseOriginalDst().GetValue(), original: m.GetUseOriginalDst().GetValue(),
	}
	if m.GetInternalListener() != nil {
		l.Board.Unknown(m.GetName(), "internal listener")
		p.bound = false
	}
	if err := p.readAddresses(m); err != nil {
		return nil, err
	}
	if err := p.readListenerFilters(m); err != nil {
		return nil, err
	}
	for _, c := range m.GetFilterChains() {
		parsed, err := l.parseChain(p, c)
		if err != nil {
			return nil, fmt.Errorf("filter chain %s: %w", c.GetName(), err)
		}
		p.chains = append(p.chains, parsed)
	}
	if c := m.GetDefaultFilterChain(); c != nil {
		var err error
		if p.fallback, err = l.parseChain(p, c); err != nil {
			return nil, fmt.Errorf("default filter chain: %w", err)
		}
	}
	prefix := "listener." + p.statName() + "."
	p.active, p.total = l.Stats.Gauge(prefix+"downstream_cx_active"), l.Stats.Counter(prefix+"downstream_cx_total")
	p.unmatched = l.Stats.Counter(prefix + "no_filter_chain_match")
	return p, nil
}

// statName is the first address as Envoy's stats have it, 0.0.0.0_15006 or [__]_15006.
func (p *listener) statName() string {
	if len(p.addresses) == 0 {
		return "internal"
	}
	return strings.ReplaceAll(p.addresses[0], ":", "_")
}

func (p *listener) readAddresses(m *listenerv3.Listener) error {
	addresses := []*corev3.Address{m.GetAddress()}
	for _, a := range m.GetAdditionalAddresses() {
		addresses = append(addresses, a.GetAddress())
	}
	for _, a := range addresses {
		network, address := upstream.Address(a)
		if network == "tcp" {
			p.addresses = append(p.addresses, address)
		} else if m.GetInternalListener() == nil {
			return fmt.Errorf("address %s is not understood", a)
		}
	}
	return nil
}

func (p *listener) readListenerFilters(m *listenerv3.Listener) error {
	p.timeout = 15 * time.Second // Envoy's
	if m.GetListenerFiltersTimeout() != nil {
		p.timeout = m.GetListenerFiltersTimeout().AsDuration()
	}
	p.goOn = m.GetContinueOnListenerFiltersTimeout()
	for _, f := range m.GetListenerFilters() {
		enabled, err := enabledFor(f.GetFilterDisabled())
		if err != nil {
			return fmt.Errorf("listener filter %s: %w", f.GetName(), err)
		}
		switch f.GetName() {
		case "envoy.filters.listener.original_dst":
			p.original = true
		case "envoy.filters.listener.original_src":
			var source originalsrcv3.OriginalSrc
			if err := f.GetTypedConfig().UnmarshalTo(&source); err != nil {
				return fmt.Errorf("listener filter %s: %w", f.GetName(), err)
			}
			p.asClient, p.mark = true, source.GetMark()
		case "envoy.filters.listener.tls_inspector":
			p.inspectTLS = enabled
		case "envoy.filters.listener.http_inspector":
			p.inspectHTTP = enabled
		default:
			return fmt.Errorf("listener filter %s is not understood", f.GetName())
		}
	}
	return nil
}

// enabledFor reads the ports for which a listener filter is disabled.
func enabledFor(m *listenerv3.ListenerFilterChainMatchPredicate) (func(port uint16) bool, error) {
	if m == nil {
		return func(uint16) bool { return true }, nil
	}
	is, err := newPredicate(m)
	return func(port uint16) bool { return !is(port) }, err
}

func newPredicate(m *listenerv3.ListenerFilterChainMatchPredicate) (func(port uint16) bool, error) {
	switch rule := m.GetRule().(type) {
	case *listenerv3.ListenerFilterChainMatchPredicate_AnyMatch:
		return func(uint16) bool { return rule.AnyMatch }, nil
	case *listenerv3.ListenerFilterChainMatchPredicate_DestinationPortRange:
		return func(port uint16) bool {
			return int32(port) >= rule.DestinationPortRange.GetStart() && int32(port) < rule.DestinationPortRange.GetEnd()
		}, nil
	case *listenerv3.ListenerFilterChainMatchPredicate_NotMatch:
		is, err := newPredicate(rule.NotMatch)
		return func(port uint16) bool { return !is(port) }, err
	case *listenerv3.ListenerFilterChainMatchPredicate_OrMatch:
		var rules []func(uint16) bool
		for _, r := range rule.OrMatch.GetRules() {
			is, err := newPredicate(r)
			if err != nil {
				return nil, err
			}
			rules = append(rules, is)
		}
		return func(port uint16) bool {
			for _, is := range rules {
				if is(port) {
					return true
				}
			}
			return false
		}, nil
	}
	return nil, fmt.Errorf("predicate %T is not understood", m.GetRule())
}

// takes reports how well a listener fits a destination: 2 by address and port, 1 by port, 0 not.
func (p *listener) takes(target netip.AddrPort) int {
	fit := 0
	for _, address := range p.addresses {
		host, port, _ := net.SplitHostPort(address)
		own, err := netip.ParseAddr(host)
		switch {
		case err != nil || port != fmt.Sprint(target.Port()):
		case own == target.Addr():
			return 2
		case own.IsUnspecified() && own.Is4() == target.Addr().Is4():
			fit = 1
		}
	}
	return fit
}
