package agent

import (
	"net"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
)

// bounds are limits of connections to a port: of one address (Each), and of all together. Rates are per second.
type bounds struct {
	rateEach, rate, burstEach, burst, openEach, open int
}

// Limits of connections to the inspect port, each of which is one request. They are taken before anything is read, so a caller without rights
// costs a TLS handshake at most: some 20 a second cost about a hundredth of a processor. All callers by way of the API server share its address.
const (
	inspectRateEach  = 5 // a second
	inspectBurstEach = 20
	inspectRate      = 20
	inspectBurst     = 40
	inspectOpenEach  = 8
	inspectOpen      = 32
	maxCallers       = 1024
)

func inspectBounds() bounds {
	return bounds{
		rateEach: inspectRateEach, rate: inspectRate, burstEach: inspectBurstEach, burst: inspectBurst, openEach: inspectOpenEach, open: inspectOpen,
	}
}

// limits decide which connections are served. The zero value is not ready: see newLimits.
type limits struct {
	bounds  bounds
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

func newLimits(b bounds) *limits {
	return &limits{bounds: b, all: rate.NewLimiter(rate.Limit(b.rate), b.burst), callers: map[netip.Prefix]*caller{}}
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
		c = &caller{rate: rate.NewLimiter(rate.Limit(l.bounds.rateEach), l.bounds.burstEach)}
		l.callers[key] = c
	}
	if l.open >= l.bounds.open || c.open >= l.bounds.openEach || !c.rate.Allow() || !l.all.Allow() {
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
