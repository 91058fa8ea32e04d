package e2e

import (
	"context"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// entry is one connection that a test proxy took.
type entry struct {
	Direction   string `json:"direction"`
	Peer        string `json:"peer"`
	OriginalDst string `json:"originalDst"`
	Error       string `json:"error"`
}

func (e entry) peer() netip.Addr {
	p, err := netip.ParseAddrPort(e.Peer)
	if err != nil {
		return netip.Addr{}
	}
	return p.Addr().Unmap()
}

// count is how many connections of one direction a test proxy took.
type count struct {
	OK     int `json:"ok"`
	Failed int `json:"failed"`
}

const (
	inbound  = "inbound"
	outbound = "outbound"
)

// journal lists the connections that the pod's proxy took.
func journal(t testing.TB, pod *corev1.Pod) []entry {
	t.Helper()
	var entries []entry
	must(t, ask(t.Context(), pod, "/connections", &entries))
	return entries
}

func counts(t testing.TB, pod *corev1.Pod) map[string]count {
	t.Helper()
	var c map[string]count
	must(t, ask(t.Context(), pod, "/counts", &c))
	return c
}

// ask reads from the proxy of the test.
func ask(ctx context.Context, pod *corev1.Pod, path string, into any) error {
	return request(ctx, at(pod, families()[0], journalPort), path, into)
}

// took counts the connections to dst that the pod's proxy took, and handled without an error.
func took(t testing.TB, pod *corev1.Pod, direction string, dst netip.AddrPort) int {
	t.Helper()
	n := 0
	for _, e := range journal(t, pod) {
		if e.Direction == direction && e.OriginalDst == dst.String() && e.Error == "" {
			n++
		}
	}
	return n
}

// wantInbound makes a connection to the pod's port from outside and wants it to pass the proxy, or not.
func wantInbound(t testing.TB, pod *corev1.Pod, f family, port uint16, proxied bool) {
	t.Helper()
	dst := at(pod, f, port)
	before := took(t, pod, inbound, dst)
	var a answer
	must(t, request(t.Context(), dst, "/", &a))
	want, times := f.client, 0
	if proxied {
		want, times = f.passthrough, 1
	}
	if a.peer() != want || a.Local != dst.String() {
		t.Errorf("%s to %s: the application saw %s -> %s, want %s -> %s", f.name, pod.Name, a.Peer, a.Local, want, dst)
	}
	if got := took(t, pod, inbound, dst) - before; got != times {
		t.Errorf("%s to %s: the proxy took %d connections with original destination %s, want %d", f.name, pod.Name, got, dst, times)
	}
}

// wantOutbound has the pod's application connect to dst and wants it to pass the proxy, or not.
func (s *space) wantOutbound(t testing.TB, pod *corev1.Pod, dst netip.AddrPort, proxied bool) {
	t.Helper()
	before, times := took(t, pod, outbound, dst), 0
	if proxied {
		times = 1
	}
	a := s.askFrom(t, pod, dst)
	if a.Banner != "world" || a.Local != dst.String() {
		t.Errorf("%s to %s: answered by %q at %s", pod.Name, dst, a.Banner, a.Local)
	}
	if got := took(t, pod, outbound, dst) - before; got != times {
		t.Errorf("%s to %s: the proxy took %d connections with that original destination, want %d", pod.Name, dst, got, times)
	}
}
