package listen

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// inspectors look at a connection's first bytes.
type inspectors struct {
	inspectTLS, inspectHTTP func(port uint16) bool
	timeout                 time.Duration // 0: none
	goOn                    bool          // after the timeout
}

// hello is what the first bytes say.
type hello struct {
	transport  string // tls or raw_buffer
	protocols  []string
	serverName string
}

// longestLine is as much of a request's first line as is looked at.
const longestLine = 8 << 10

// inspect reads the first bytes as far as needed. They are served again to who reads the connection next.
func (i inspectors) inspect(c *conn) error {
	c.hello.transport = "raw_buffer"
	wantTLS := i.inspectTLS != nil && i.inspectTLS(c.target.Port())
	wantHTTP := i.inspectHTTP != nil && i.inspectHTTP(c.target.Port())
	if !wantTLS && !wantHTTP {
		return nil
	}
	if i.timeout > 0 {
		if err := c.SetReadDeadline(time.Now().Add(i.timeout)); err != nil {
			return err
		}
		defer c.SetReadDeadline(time.Time{}) //nolint:errcheck // the next read fails
	}
	p := &peeker{Conn: c.Conn}
	err := p.look(&c.hello, wantTLS, wantHTTP)
	c.Conn = &replayed{Conn: c.Conn, first: p.seen.Bytes()}
	if errors.Is(err, os.ErrDeadlineExceeded) && i.goOn {
		return nil
	}
	return err
}

// peeker remembers what it reads, and writes nothing.
type peeker struct {
	net.Conn
	seen bytes.Buffer
	pos  int
}

// Read reads at the position, first what was seen.
func (p *peeker) Read(b []byte) (int, error) {
	if p.pos == p.seen.Len() {
		n, err := p.Conn.Read(b)
		p.seen.Write(b[:n])
		p.pos += n
		return n, err
	}
	n := copy(b, p.seen.Bytes()[p.pos:])
	p.pos += n
	return n, nil
}

// Write fails: a server that looks at a greeting does not answer.
func (p *peeker) Write([]byte) (int, error) { return 0, net.ErrClosed }

func (p *peeker) look(h *hello, wantTLS, wantHTTP bool) error {
	first := make([]byte, 1)
	if _, err := io.ReadFull(p, first); err != nil {
		return err
	}
	p.pos = 0
	const handshake = 0x16
	if wantTLS && first[0] == handshake {
		return p.lookTLS(h)
	}
	if wantHTTP {
		return p.lookHTTP(h)
	}
	return nil
}

// lookTLS has package tls read the client's greeting, and stops it then.
func (p *peeker) lookTLS(h *hello) error {
	stop := errors.New("seen")
	err := tls.Server(p, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
		h.transport, h.protocols, h.serverName = "tls", info.SupportedProtos, info.ServerName
		return nil, stop
	}}).Handshake() //nolint:noctx // the connection has a deadline
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) {
		return err
	}
	return nil // whatever it is, it is no TLS that this end knows
}

// preface begins a connection of HTTP/2 without TLS.
const preface = "PRI * HTTP/2.0\r\n"

// lookHTTP reads the first line, or as much of it as says that it is none of HTTP.
func (p *peeker) lookHTTP(h *hello) error {
	line := make([]byte, 0, 256)
	b := make([]byte, 1)
	for len(line) < longestLine {
		if _, err := io.ReadFull(p, b); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		line = append(line, b[0])
		if b[0] == '\n' {
			break
		}
		if !mayBeHTTP(line) {
			return nil
		}
	}
	text := strings.TrimRight(string(line), "\r\n")
	switch {
	case strings.HasPrefix(preface, text):
		h.protocols = []string{"h2c"}
	case strings.HasSuffix(text, " HTTP/1.1"):
		h.protocols = []string{"http/1.1"}
	case strings.HasSuffix(text, " HTTP/1.0"):
		h.protocols = []string{"http/1.0"}
	}
	return nil
}

// mayBeHTTP reports whether a line begins with a method, or the beginning of one.
func mayBeHTTP(line []byte) bool {
	method, _, ended := bytes.Cut(line, []byte(" "))
	const longestMethod = 20
	if len(method) > longestMethod || ended && len(method) == 0 {
		return false
	}
	for _, c := range method {
		if c < 'A' || c > 'Z' {
			return false
		}
	}
	return true
}

// replayed serves bytes again that were looked at.
type replayed struct {
	net.Conn
	first []byte
}

func (r *replayed) Read(b []byte) (int, error) {
	if len(r.first) == 0 {
		return r.Conn.Read(b)
	}
	n := copy(b, r.first)
	r.first = r.first[n:]
	return n, nil
}

// CloseWrite ends one direction.
func (r *replayed) CloseWrite() error { return closeWrite(r.Conn) }

// closeWrite ends one direction of a connection, if its kind can.
func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
