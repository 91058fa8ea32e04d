package serving

import (
	"net"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
)

// Bounds are limits of connections to a port: of one address (Each), and of all together. Rates are per second.
type Bounds struct{ RateEach, Rate, BurstEach, Burst, OpenEach, Open int }

// maxCallers bounds the addresses that are remembered.
const maxCallers = 1024

// Limit returns a listener that serves the connections within bounds, and closes the others at once.
func Limit(l net.Listener, b Bounds) net.Listener { return limitedListener{l, newLimits(b)} }

// limits decide which connections are served. The zero value is not ready: see newLimits.
type limits struct {
	bounds  Bounds
	mu      sync.Mutex
	all     *rate.Limiter
	callers map[netip.Prefix]*caller
	open    int
}

// caller is one address, or one network of IPv6: a host there has as many addresses as it likes.
type caller struct {
	rate *rate.Limiter
	open int
}

func newLimits(b Bounds) *limits {
	return &limits{bounds: b, all: rate.NewLimiter(rate.Limit(b.Rate), b.Burst), callers: map[netip.Prefix]*caller{}}
}

// enter reports whether a connection from an address is served. leave must follow if it is. What one address asks for beyond its own rate is
// not taken from the others'.
func (l *limits) enter(from netip.Addr) (leave func(), ok bool) {
	key := callerOf(from)
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.callers[key]
	if c == nil {
		l.prune()
		c = &caller{rate: rate.NewLimiter(rate.Limit(l.bounds.RateEach), l.bounds.BurstEach)}
		l.callers[key] = c
	}
	if l.open >= l.bounds.Open || c.open >= l.bounds.OpenEach || !c.rate.Allow() || !l.all.Allow() {
		return nil, false
	}
	l.open++
	c.open++
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open--
		c.open--
	}), true
}

// prune forgets callers without an open connection, and their rates, if there are too many. The limit of all callers together still holds.
func (l *limits) prune() {
	if len(l.callers) < maxCallers {
		return
	}
	for key, c := range l.callers {
		if c.open == 0 {
			delete(l.callers, key)
		}
	}
}

func callerOf(from netip.Addr) netip.Prefix {
	from = from.Unmap().WithZone("")
	bits := from.BitLen()
	if from.Is6() {
		bits = 64
	}
	p, err := from.Prefix(bits)
	if err != nil { // no address: all of those are one caller
		return netip.Prefix{}
	}
	return p
}

// limitedListener serves the connections that limits let in, and closes the others at once.
type limitedListener struct {
	net.Listener
	limits *limits
}

// Accept returns the next connection that is served.
func (l limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
		if leave, ok := l.limits.enter(from.Addr()); ok {
			return leavingConn{conn, leave}, nil
		}
		_ = conn.Close() // nothing was said on it
	}
}

// leavingConn leaves its limits when it is closed.
type leavingConn struct {
	net.Conn
	leave func()
}

// Close closes the connection.
func (c leavingConn) Close() error {
	c.leave()
	return c.Conn.Close()
}
