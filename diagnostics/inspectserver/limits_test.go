package inspectserver

import (
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/diagnostics/inspect"
)

// Silent connections end, and their end is another one than a refusal by the agent.
func TestTooManyConnectionsAreClosedAtOnce(t *testing.T) {
	_, at := served(t, (&oneNode{}).looker(fakeKernel{}))
	for range bounds().OpenEach {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", at.Port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	_, err := callerOfAgent(at, "dev").Get(t.Context(), "shop", "cart")
	if err == nil || !strings.Contains(err.Error(), "too many requests") {
		t.Errorf("error %v", err)
	}
}

// A tunnel that is opened and not used is one connection like any other.
func TestATunnelWithoutTLSInsideEnds(t *testing.T) {
	_, at := served(t, (&oneNode{}).looker(fakeKernel{}))
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", at.Port), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a test
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // the test is over
	request := "GET " + inspect.TunnelPath + " HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: " + inspect.UpgradeProtocol + "\r\n\r\n"
	answer := make([]byte, 12)
	if _, err := conn.Write([]byte(request)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(answer); err != nil || string(answer) != "HTTP/1.1 101" {
		t.Fatalf("answer %q, error %v", answer, err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(2 * timeout))
	rest := make([]byte, 1024)
	for err == nil {
		_, err = conn.Read(rest)
	}
	if netErr, ok := err.(net.Error); ok && netErr.Timeout() { //nolint:errorlint // the outermost one
		t.Error("the agent keeps it open")
	}
}
