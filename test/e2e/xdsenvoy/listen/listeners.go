package listen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"istio-pod-network-controller/test/e2e/xdsenvoy/discovery"
	"istio-pod-network-controller/test/e2e/xdsenvoy/notice"
	"istio-pod-network-controller/test/e2e/xdsenvoy/route"
	"istio-pod-network-controller/test/e2e/xdsenvoy/stats"
	"istio-pod-network-controller/test/e2e/xdsenvoy/trust"
	"istio-pod-network-controller/test/e2e/xdsenvoy/upstream"
)

// Config is what listeners need.
type Config struct {
	Clusters  *upstream.Clusters
	Routes    *route.Tables
	Secrets   *trust.Secrets
	Stats     *stats.Stats
	Board     *notice.Board
	Log       *slog.Logger
	DrainTime time.Duration
}

// Listeners are all listeners with their sockets.
type Listeners struct {
	Config

	mu        sync.Mutex
	listeners map[string]*listener
	sockets   map[string]net.Listener // by address
	bind      func(address string) error
	received  bool
	stopped   func(p *listener) bool // does not accept any more

	leavingInbound, leavingAll atomic.Bool
}

// New has no listeners yet.
func New(config Config) *Listeners {
	return &Listeners{Config: config, listeners: map[string]*listener{}, sockets: map[string]net.Listener{}, stopped: func(*listener) bool { return false }}
}

// AddStatic adds a listener of the bootstrap.
func (l *Listeners) AddStatic(m *listenerv3.Listener) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.set(m)
}

// Apply takes listeners of a response. What is refused changes nothing.
func (l *Listeners) Apply(change discovery.Change) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, name := range change.Removed {
		l.remove(name)
	}
	for _, name := range slices.Sorted(maps.Keys(change.Set)) {
		var m listenerv3.Listener
		if err := change.Set[name].UnmarshalTo(&m); err != nil {
			return err
		}
		if err := l.set(&m); err != nil {
			errs = append(errs, fmt.Errorf("listener %s: %w", name, err))
		}
	}
	l.received = true
	return errors.Join(errs...)
}

// set adds or replaces a listener; with the lock held. Connections of chains that are as before stay; others get time to end.
func (l *Listeners) set(m *listenerv3.Listener) error {
	old := l.listeners[m.GetName()]
	if old != nil && proto.Equal(old.proto, m) {
		return nil
	}
	p, err := l.parse(m)
	if err != nil {
		return err
	}
	if old != nil {
		p.keepChains(old)
	}
	l.listeners[p.name] = p
	if l.bind == nil {
		return nil
	}
	if err := l.bindAll(p); err != nil {
		if old == nil {
			delete(l.listeners, p.name)
		}
		return err
	}
	if old != nil {
		l.retire(old, p)
	}
	return nil
}

// keepChains keeps chains that are as before, with their connections.
func (p *listener) keepChains(old *listener) {
	before := append(slices.Clone(old.chains), old.fallback)
	same := func(c *chain) *chain {
		for _, b := range before {
			if b != nil && c != nil && proto.Equal(b.proto, c.proto) {
				return b
			}
		}
		return c
	}
	for i, c := range p.chains {
		p.chains[i] = same(c)
	}
	p.fallback = same(p.fallback)
}

func (l *Listeners) remove(name string) {
	if old := l.listeners[name]; old != nil {
		delete(l.listeners, name)
		l.retire(old, &listener{})
	}
}

// retire closes sockets, and after a while connections, that the new configuration has not.
func (l *Listeners) retire(old, now *listener) {
	for _, address := range old.addresses {
		if socket := l.sockets[address]; old.bound && socket != nil && !slices.Contains(now.addresses, address) {
			_ = socket.Close()
			delete(l.sockets, address)
		}
	}
	for _, c := range append(slices.Clone(old.chains), old.fallback) {
		if c != nil && !slices.Contains(now.chains, c) && c != now.fallback {
			c.leaving.Store(true)
			time.AfterFunc(l.DrainTime, c.cut)
		}
	}
}

// Start opens the sockets and accepts connections until ctx ends.
func (l *Listeners) Start(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bind = func(address string) error { return l.listen(ctx, address) }
	var errs []error
	for _, p := range l.listeners {
		errs = append(errs, l.bindAll(p))
	}
	return errors.Join(errs...)
}

func (l *Listeners) bindAll(p *listener) error {
	if !p.bound || l.stopped(p) {
		return nil
	}
	var errs []error
	for _, address := range p.addresses {
		if l.sockets[address] == nil {
			errs = append(errs, l.bind(address))
		}
	}
	return errors.Join(errs...)
}

// RouteNames lists the discovered routes that listeners refer to.
func (l *Listeners) RouteNames() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := []string{}
	for _, p := range l.listeners {
		names = append(names, p.rdsNames()...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Missing says whether listeners have not come.
func (l *Listeners) Missing() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.received {
		return []string{"listeners"}
	}
	return nil
}

// Each calls f with all listeners, for the administration's listings.
func (l *Listeners) Each(f func(m proto.Message)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.listeners {
		f(p.proto)
	}
}

// find returns the listener that takes connections to a destination: by address and port, or by port.
func (l *Listeners) find(target netip.AddrPort) *listener {
	l.mu.Lock()
	defer l.mu.Unlock()
	var best *listener
	fit := 0
	for _, p := range l.listeners {
		if n := p.takes(target); n > fit {
			best, fit = p, n
		}
	}
	return best
}
