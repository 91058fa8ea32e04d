package e2e

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"
)

// echo is a connection that stays open to an application that repeats what it is told.
type echo struct {
	conn    net.Conn
	lines   *bufio.Reader
	proxied bool
}

func dialEcho(t *testing.T, to netip.AddrPort) *echo {
	t.Helper()
	conn, err := net.DialTimeout("tcp", to.String(), answerWithin)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	e := &echo{conn: conn, lines: bufio.NewReader(conn)}
	must(t, conn.SetDeadline(time.Now().Add(answerWithin)))
	a := decode[answer](t, e.line(t))
	e.proxied = a.peer().IsLoopback() || a.peer() == families()[1].passthrough
	return e
}

// say sends a line and wants it back.
func (e *echo) say(t *testing.T, words string) {
	t.Helper()
	must(t, e.conn.SetDeadline(time.Now().Add(answerWithin)))
	_, err := fmt.Fprintln(e.conn, words)
	must(t, err)
	if got := e.line(t); got != words+"\n" {
		t.Errorf("said %q on an open connection, heard %q", words, got)
	}
}

func (e *echo) line(t *testing.T) string {
	t.Helper()
	line, err := e.lines.ReadString('\n')
	if err != nil {
		t.Fatalf("the open connection has ended: %v", err)
	}
	return line
}
