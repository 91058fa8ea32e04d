package listen

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"istio-pod-network-controller/test/e2e/xdsenvoy/rbac"
	"istio-pod-network-controller/test/e2e/xdsenvoy/trust"
)

// conn is an accepted connection.
type conn struct {
	net.Conn  // with the bytes that were looked at, and without the TLS that was terminated
	socket    *net.TCPConn
	listeners *Listeners
	listener  *listener
	source    netip.AddrPort
	target    netip.AddrPort // where it was going
	hello     hello
	peer      *trust.Peer // nil: it has not said who it is

	once    sync.Once
	counted *listener
	onClose func() // of the chain; may be nil
}

// handshakeLimit is how long a client may take to say who it is.
const handshakeLimit = 15 * time.Second

// secure terminates TLS.
func (c *conn) secure(ctx context.Context, t *trust.Context) error {
	ctx, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	prefix := "listener." + c.counted.statName() + ".ssl."
	secured, err := t.Accept(ctx, c.Conn)
	if err != nil {
		c.listeners.Stats.Counter(prefix + "connection_error").Add(1)
		return fmt.Errorf("secure the connection: %w", err)
	}
	c.listeners.Stats.Counter(prefix + "handshake").Add(1)
	c.Conn, c.peer = secured, t.PeerOf(secured.ConnectionState())
	return nil
}

// Close counts the connection as ended, once.
func (c *conn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		err = c.Conn.Close()
		c.counted.active.Add(-1)
		if c.onClose != nil {
			c.onClose()
		}
	})
	return err
}

// end closes a connection, for a reason that the client is not told.
func (c *conn) end(reason string) {
	c.listeners.Log.Info("connection closed", "listener", c.listener.name, "source", c.source.String(), "target", c.target.String(),
		"transport", c.hello.transport, "protocols", c.hello.protocols, "reason", reason)
	_ = c.Close()
}

// CloseWrite ends one direction.
func (c *conn) CloseWrite() error { return closeWrite(c.Conn) }

// subject is the connection as policies see it.
func (c *conn) subject() rbac.Subject {
	s := rbac.Subject{Source: c.source.Addr(), Target: c.target, ServerName: c.hello.serverName}
	if c.peer != nil {
		s.Names = c.peer.Names
	}
	return s
}
