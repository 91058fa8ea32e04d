package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"
)

// direction is which of the two ports took a connection.
type direction string

const (
	outboundDirection direction = "outbound"
	inboundDirection  direction = "inbound"
)

// errLoop says that a connection was meant for the proxy itself: going there would come back for ever.
var errLoop = errors.New("the original destination is this proxy: refused")

// proxy handles one connection in these steps:
//   - ask the kernel for the original destination,
//   - refuse it if it is this proxy itself,
//   - connect to it; inbound from the source address that redirection rules let through to the application,
//   - note the connection,
//   - copy bytes both ways until both sides have ended.
//
// A transparent one gets inbound connections with their addresses unchanged, and makes its own in the client's name.
type proxy struct {
	own         []uint16
	log         *journal
	transparent bool
}

// listen takes one port in both families, by two sockets: one for both could not ask for IPv4's original destinations as IPv4.
func (p *proxy) listen(ctx context.Context, d direction, port uint16, failed chan<- error) error {
	var config net.ListenConfig
	if p.transparent && d == inboundDirection {
		config.Control = openTransparent
	}
	for network, host := range map[string]string{"tcp4": "0.0.0.0", "tcp6": "::"} {
		l, err := config.Listen(ctx, network, hostPort(host, port))
		if err != nil {
			return fmt.Errorf("listen for %s connections: %w", d, err)
		}
		context.AfterFunc(ctx, func() { _ = l.Close() })
		go func() { failed <- p.serve(l, d) }()
	}
	return nil
}

func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// serve ends with the listener only: a failed connection is the client's matter.
func (p *proxy) serve(l net.Listener, d direction) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			go p.handle(tcp, d)
		}
	}
}

// handle notes the connection as soon as its fate is known, not when it ends: tests look while it is open.
func (p *proxy) handle(client *net.TCPConn, d direction) {
	defer client.Close()
	entry := connection{Time: time.Now(), Direction: d, Peer: client.RemoteAddr().String()}
	server, err := p.connect(client, d, &entry)
	if err != nil {
		entry.Error = err.Error()
	}
	p.log.add(entry)
	if err != nil {
		return
	}
	defer server.Close()
	var both sync.WaitGroup
	both.Go(func() { pipe(server, client) })
	both.Go(func() { pipe(client, server) })
	both.Wait()
}

// connect does the first three steps and fills in what is known of the destination, even when it then fails.
func (p *proxy) connect(client *net.TCPConn, d direction, entry *connection) (*net.TCPConn, error) {
	dst, err := originalDst(client)
	if err != nil {
		return nil, err
	}
	entry.OriginalDst = dst.String()
	if slices.Contains(p.own, dst.Port()) && isOwn(dst.Addr()) {
		return nil, errLoop
	}
	server, err := p.dialer(client, d, dst).Dial("tcp", dst.String())
	if err != nil {
		return nil, fmt.Errorf("connect to the original destination: %w", err)
	}
	tcp, ok := server.(*net.TCPConn)
	if !ok {
		return nil, errors.Join(errors.New("no TCP connection"), server.Close())
	}
	return tcp, nil
}

// dialer decides whose address the connection has.
func (p *proxy) dialer(client *net.TCPConn, d direction, dst netip.AddrPort) *net.Dialer {
	peer, err := netip.ParseAddrPort(client.RemoteAddr().String())
	switch {
	case d == outboundDirection:
		return &net.Dialer{}
	case p.transparent && err == nil:
		// The port is another one: with the client's own, both connections would be the same to the kernel.
		name := netip.AddrPortFrom(peer.Addr().Unmap(), 0)
		return &net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(name), Control: fromClientAddress(name.Addr())}
	}
	return &net.Dialer{LocalAddr: passthroughSource(dst.Addr())}
}

// passthroughSource is what Envoy uses too. By it the rules recognise connections that the proxy has handled. IPv4's is an address
// of every loopback; IPv6's must have been added to it, or binding fails.
func passthroughSource(dst netip.Addr) *net.TCPAddr {
	if dst.Is4() {
		return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 6)}
	}
	return &net.TCPAddr{IP: net.ParseIP("::6")}
}

// isOwn looks the addresses up each time: a pod may get one later.
func isOwn(a netip.Addr) bool {
	if a.IsLoopback() {
		return true
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return true // in doubt rather refuse than loop
	}
	return slices.ContainsFunc(addrs, func(own net.Addr) bool {
		prefix, err := netip.ParsePrefix(own.String())
		return err == nil && prefix.Addr() == a
	})
}

// pipe copies one way and passes on the end of the stream, so that the other way can go on.
func pipe(to, from *net.TCPConn) {
	_, err := io.Copy(to, from)
	if err != nil {
		_ = to.Close() // the other way must end too
		_ = from.Close()
		return
	}
	_ = to.CloseWrite()
}
