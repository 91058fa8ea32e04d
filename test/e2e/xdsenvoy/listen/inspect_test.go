package listen

import (
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"
)

func everywhere(uint16) bool { return true }

// inspected returns what is seen of a client, and the bytes that the next reader gets.
func inspected(t *testing.T, i inspectors, client func(c net.Conn)) (hello, string, error) {
	t.Helper()
	here, there := net.Pipe()
	go func() {
		client(there)
		_ = there.Close()
	}()
	c := &conn{Conn: here, target: netip.MustParseAddrPort("10.0.0.2:80")}
	err := i.inspect(c)
	if err != nil {
		return c.hello, "", err
	}
	rest, _ := io.ReadAll(c.Conn) // the client may have gone in the middle
	return c.hello, string(rest), nil
}

func TestInspect_sees(t *testing.T) {
	both := inspectors{inspectTLS: everywhere, inspectHTTP: everywhere, timeout: 100 * time.Millisecond, goOn: true}
	say := func(text string) func(net.Conn) { return func(c net.Conn) { _, _ = io.WriteString(c, text) } }
	for name, c := range map[string]struct {
		inspectors
		says      string
		protocols []string
	}{
		"HTTP/1.1":                   {both, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", []string{"http/1.1"}},
		"HTTP/1.0":                   {both, "GET / HTTP/1.0\r\n\r\n", []string{"http/1.0"}},
		"HTTP/2 without TLS":         {both, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []string{"h2c"}},
		"bytes":                      {both, "\x00\x01 bytes", nil},
		"words":                      {both, "hello", nil},
		"HTTP where none looks":      {inspectors{inspectTLS: everywhere}, "GET / HTTP/1.1\r\n\r\n", nil},
		"HTTP where nothing is read": {inspectors{}, "GET / HTTP/1.1\r\n\r\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, rest, err := inspected(t, c.inspectors, say(c.says))
			if err != nil || got.transport != "raw_buffer" || !slices.Equal(got.protocols, c.protocols) {
				t.Errorf("seen is %+v, %v", got, err)
			}
			if rest != c.says {
				t.Errorf("the next reader gets %q, want %q", rest, c.says)
			}
		})
	}
}

func TestInspect_ofTLS_seesNameAndProtocols(t *testing.T) {
	got, rest, err := inspected(t, inspectors{inspectTLS: everywhere, inspectHTTP: everywhere}, func(c net.Conn) {
		_ = c.SetDeadline(time.Now().Add(200 * time.Millisecond))
		_ = tls.Client(c, &tls.Config{ServerName: "a.example.com", NextProtos: []string{"istio-http/1.1", "istio"}, MinVersion: tls.VersionTLS12}).Handshake() //nolint:noctx // nobody answers
	})
	if err != nil || got.transport != "tls" || got.serverName != "a.example.com" || !slices.Equal(got.protocols, []string{"istio-http/1.1", "istio"}) {
		t.Errorf("seen is %+v, %v", got, err)
	}
	if len(rest) < 100 || rest[0] != 0x16 {
		t.Errorf("the next reader gets %d bytes", len(rest))
	}
}

// A client that waits for the server to speak first is passed on after the timeout, if the listener says so.
func TestInspect_ofASilentClient_goesOnAfterTheTimeout(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	silent := func(net.Conn) { <-release }
	here, there := net.Pipe()
	go silent(there)
	i := inspectors{inspectTLS: everywhere, timeout: 10 * time.Millisecond, goOn: true}
	if err := i.inspect(&conn{Conn: here}); err != nil {
		t.Errorf("with continue_on_listener_filters_timeout: %v", err)
	}
	i.goOn = false
	if err := i.inspect(&conn{Conn: here}); err == nil {
		t.Error("without it, the connection goes on")
	}
}
