package agent

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"istio-pod-network-controller/diagnostics/inspect"
)

// enterAll tries n connections of one address after the other, none of which stays open, and returns how many were served.
func enterAll(l *limits, from string, n int) (served int) {
	for range n {
		if leave, ok := l.enter(netip.MustParseAddr(from)); ok {
			leave()
			served++
		}
	}
	return served
}

func TestNoAddressUsesUpWhatIsLeftToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimits(inspectBounds())
		if got := enterAll(l, "192.0.2.1", 1000); got != inspectBurstEach {
			t.Errorf("one address was served %d times at once, want %d", got, inspectBurstEach)
		}
		if got := enterAll(l, "192.0.2.2", 1); got != 1 {
			t.Error("another address is not served")
		}
		served := 0
		for i := range 100 {
			served += enterAll(l, fmt.Sprintf("192.0.2.%d", 10+i), 10)
		}
		if want := inspectBurst - inspectBurstEach - 1; served != want {
			t.Errorf("all others together were served %d times at once, want %d", served, want)
		}
		<-time.After(time.Second)
		if got := enterAll(l, "192.0.2.1", 1000); got != inspectRateEach {
			t.Errorf("a second later one address is served %d times, want %d", got, inspectRateEach)
		}
	})
}

func TestANetworkOfIPv6IsOneCaller(t *testing.T) {
	l := newLimits(inspectBounds())
	served := 0
	for i := range 100 {
		served += enterAll(l, fmt.Sprintf("2001:db8::%x", i), 1)
	}
	if served != inspectBurstEach {
		t.Errorf("%d were served, want %d", served, inspectBurstEach)
	}
	if callerOf(netip.MustParseAddr("::ffff:192.0.2.1")) != callerOf(netip.MustParseAddr("192.0.2.1")) {
		t.Error("an address counts twice")
	}
}

func TestOpenConnectionsAreBounded(t *testing.T) {
	l := newLimits(inspectBounds())
	var leaves []func()
	for range inspectBurstEach {
		if leave, ok := l.enter(netip.MustParseAddr("192.0.2.1")); ok {
			leaves = append(leaves, leave)
		}
	}
	if len(leaves) != inspectOpenEach {
		t.Fatalf("%d are open, want %d", len(leaves), inspectOpenEach)
	}
	for _, leave := range leaves {
		leave()
		leave() // as a connection that is closed twice
	}
	if l.open != 0 {
		t.Errorf("%d are counted after all were closed", l.open)
	}
}

func TestCallersAreForgotten(t *testing.T) {
	l := newLimits(inspectBounds())
	for i := range 3 * maxCallers {
		enterAll(l, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String(), 1)
	}
	if len(l.callers) > maxCallers {
		t.Errorf("%d are remembered", len(l.callers))
	}
}

// Connections on which nothing is said end, and are told apart from an agent that refuses.
func TestTooManyConnectionsAreClosedAtOnce(t *testing.T) {
	_, at := served(t, (&oneNode{}).looker(fakeKernel{}))
	for range inspectOpenEach {
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
	_ = conn.SetReadDeadline(time.Now().Add(2 * inspectTimeout))
	rest := make([]byte, 1024)
	for err == nil {
		_, err = conn.Read(rest)
	}
	if netErr, ok := err.(net.Error); ok && netErr.Timeout() { //nolint:errorlint // the outermost one
		t.Error("the agent keeps it open")
	}
}
