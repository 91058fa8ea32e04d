package listen

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"istio-pod-network-controller/test/e2e/xdsenvoy/upstream"
)

// listen opens a socket and accepts from it; with the lock held.
func (l *Listeners) listen(ctx context.Context, address string) error {
	owner := l.ownerOf(address)
	socket, err := open(ctx, address, owner != nil && owner.transparent)
	if err != nil {
		return err
	}
	l.sockets[address] = socket
	context.AfterFunc(ctx, func() { _ = socket.Close() })
	go func() {
		for {
			c, err := socket.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				l.Log.Warn("connection not accepted", "address", address, "error", err)
				<-time.After(100 * time.Millisecond)
				continue
			}
			go l.accepted(ctx, address, c.(*net.TCPConn))
		}
	}()
	return nil
}

// ownerOf finds the bound listener of an address; with the lock held.
func (l *Listeners) ownerOf(address string) *listener {
	for _, p := range l.listeners {
		if p.bound && slices.Contains(p.addresses, address) {
			return p
		}
	}
	return nil
}

// accepted serves a connection: its listener, what its first bytes say, its chain.
func (l *Listeners) accepted(ctx context.Context, address string, socket *net.TCPConn) {
	l.mu.Lock()
	p := l.ownerOf(address)
	l.mu.Unlock()
	if p == nil {
		_ = socket.Close() // it was removed this moment
		return
	}
	c := &conn{Conn: socket, socket: socket, listeners: l, listener: p, counted: p, source: unmap(socket.RemoteAddr()), target: unmap(socket.LocalAddr())}
	p.active.Add(1)
	p.total.Add(1)
	if p.original {
		c.target = originalTarget(socket)
	}
	if p.handOff && c.target != unmap(socket.LocalAddr()) {
		if to := l.find(c.target); to != nil {
			c.listener = to
		}
	}
	if err := c.listener.inspect(c); err != nil {
		c.end("look at the first bytes: " + err.Error())
		return
	}
	if p.asClient {
		ctx = upstream.From(ctx, c.source.Addr(), p.mark)
	}
	chain := c.listener.choose(c)
	if chain == nil {
		c.listener.unmatched.Add(1)
		c.end("no filter chain matches")
		return
	}
	chain.serve(ctx, c)
}

// leaving reports whether clients of a direction are asked to go.
func (l *Listeners) leaving(inbound bool) bool {
	return l.leavingAll.Load() || inbound && l.leavingInbound.Load()
}

// Drain asks clients to go. When the drain time is over, or at once if it is not to be graceful, the sockets are closed, unless they are to stay.
func (l *Listeners) Drain(inboundOnly, graceful, stay bool) {
	stop := func(p *listener) bool { return !inboundOnly || p.inbound }
	if !graceful {
		l.stop(stop)
		return
	}
	flag := &l.leavingAll
	if inboundOnly {
		flag = &l.leavingInbound
	}
	if l.leavingInbound.Load() || l.leavingAll.Load() {
		return // the drain goes on
	}
	flag.Store(true)
	if !stay {
		time.AfterFunc(l.DrainTime, func() { l.stop(stop) })
	}
}

// Fail asks all clients to go, as a proxy does whose health check is made to fail.
func (l *Listeners) Fail(failed bool) { l.leavingAll.Store(failed) }

// stop closes the sockets of listeners, for good.
func (l *Listeners) stop(which func(*listener) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.stopped
	l.stopped = func(p *listener) bool { return before(p) || which(p) }
	for _, p := range l.listeners {
		for _, address := range p.addresses {
			if socket := l.sockets[address]; p.bound && which(p) && socket != nil {
				_ = socket.Close()
				delete(l.sockets, address)
				l.Log.Info("listener stopped", "listener", p.name, "address", address)
			}
		}
	}
}
