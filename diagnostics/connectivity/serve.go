package connectivity

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
)

// Limits of one connection. The proxy's own connection has to end before its client gives up.
const (
	connectionLimit = 5 * time.Second
	dialLimit       = 2 * time.Second
	nextLimit       = time.Second
)

// Server answers connections in one of the two pods.
type Server struct {
	Pod string
	// Dst returns the destination that the client of a connection dialled, before redirection.
	Dst func(*net.TCPConn) netip.AddrPort
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

// accept answers connections, each in a goroutine of its own, until ctx ends.
func (s Server) accept(ctx context.Context, l net.Listener, role Role) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // which ends Accept
	defer stop()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept as the %s side: %w", role, err)
		}
		tcp, ok := c.(*net.TCPConn)
		if !ok {
			return errors.New("accept: not a TCP connection")
		}
		go s.answer(ctx, tcp, role)
	}
}

// answer reads a request and says who took it. A client that sends nothing in time gets nothing.
func (s Server) answer(ctx context.Context, c *net.TCPConn, role Role) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(connectionLimit))
	var r Request
	if err := readLine(c, &r); err != nil {
		return
	}
	a := Answer{Role: role, Pod: s.Pod, Dst: s.Dst(c)}
	if role == RoleOutbound {
		a.Next, a.Fault = s.passOn(ctx, a.Dst, r)
	}
	_ = writeLine(c, a) // the client may have gone
}

// passOn connects to a destination as a proxy does. A request that has been passed on before comes from the proxy itself: that is a loop.
func (s Server) passOn(ctx context.Context, dst netip.AddrPort, r Request) (*Answer, string) {
	if r.Hops > 0 {
		return nil, "the proxy's own connection came back to the proxy"
	}
	a, err := s.Dial.ask(ctx, dst, Request{Hops: r.Hops + 1}, nextLimit)
	if err != nil {
		return nil, err.Error()
	}
	return &a, ""
}

// ask makes one connection and reads its answer. Redirection is decided for each connection, so none is used again.
func (d Dialer) ask(ctx context.Context, dst netip.AddrPort, r Request, limit time.Duration) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if d == nil {
		d = (&net.Dialer{}).DialContext
	}
	c, err := d(ctx, "tcp", dst.String())
	if err != nil {
		return Answer{}, fmt.Errorf("connect: %w", err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(limit))
	if err := writeLine(c, r); err != nil {
		return Answer{}, fmt.Errorf("ask %s: %w", dst, err)
	}
	var a Answer
	if err := readLine(c, &a); err != nil {
		return Answer{}, fmt.Errorf("ask %s: %w", dst, err)
	}
	return a, nil
}
