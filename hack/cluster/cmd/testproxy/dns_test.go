package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"
)

func TestEveryNameHasTheResolversAddresses(t *testing.T) {
	a, aaaa := sidecarAddresses()
	address := startResolver(t, everyName(a, aaaa))
	for _, network := range []string{"udp", "tcp"} {
		for kind, want := range map[string]netip.Addr{"ip4": a, "ip6": aaaa} {
			got, err := asking(network, address).LookupNetIP(t.Context(), kind, "some.name.example.")
			if err != nil || !slices.Equal(got, []netip.Addr{want}) {
				t.Errorf("%s by %s: %v, %v; want %s", kind, network, got, err, want)
			}
		}
	}
	if got, err := asking("udp", address).LookupTXT(t.Context(), "some.name.example."); err == nil {
		t.Errorf("there are texts: %v", got)
	}
}

func TestWhatIsNoQueryIsNotAnswered(t *testing.T) {
	query := []byte{1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 'a', 0, 0, typeA, 0, 1}
	r := everyName(sidecarAddresses())
	if got := r.answer(query); len(got) != len(query)+16 {
		t.Fatalf("the query itself: % x", got)
	}
	if got := resolver(func(string) ([]netip.Addr, bool) { return nil, false }).answer(query); len(got) != len(query) || got[3]&0xf != noSuchName {
		t.Errorf("a name that does not exist: % x", got)
	}
	answer := append([]byte{}, query...)
	answer[2] |= 0x80
	two := append([]byte{}, query...)
	two[5] = 2
	for name, message := range map[string][]byte{"empty": nil, "cut off": query[:len(query)-1], "cut off in a name": query[:headerSize+1], "an answer": answer, "two questions": two} {
		if got := r.answer(message); got != nil {
			t.Errorf("%s: answered by % x", name, got)
		}
	}
}

// startResolver takes a port that is free for UDP as well as for TCP.
func startResolver(t *testing.T, r resolver) string {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	failed := make(chan error, 2)
	probe, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := probe.LocalAddr().String()
	if err := probe.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.listen(ctx, address, failed); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		for range cap(failed) {
			if err := <-failed; !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		}
	})
	return address
}

func asking(network, address string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		d := net.Dialer{Timeout: 5 * time.Second}
		return d.DialContext(ctx, network, address)
	}}
}
