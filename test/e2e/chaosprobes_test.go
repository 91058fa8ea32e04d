package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"istio-pod-network-controller/test/e2e/chaos"
)

// serveChaosWorld is whom the pods dial. They say from which address: where that is the one that it sees, no proxy was in between.
func (r *chaosRun) serveChaosWorld() {
	r.t.Helper()
	l, err := net.Listen("tcp", "[::]:0")
	must(r.t, err)
	r.worldPort = l.Addr().(*net.TCPAddr).Port
	server := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		uid, from := strings.TrimPrefix(req.URL.Path, "/"), req.Header.Get("From-Address")
		r.saw(chaos.Outbound, uid, from, req.RemoteAddr)
		tellConnection(w, req)
	})}
	go server.Serve(l) //nolint:errcheck // ends with the test
	r.t.Cleanup(func() { _ = server.Close() })
}

// saw judges a connection whose client has the address from, and whose server sees peer.
func (r *chaosRun) saw(d chaos.Direction, uid, from, peer string) {
	now := time.Now()
	if plain(from) != plain(peer) {
		r.judge.Proxied(d, uid, now)
		return
	}
	who := r.nameOf(uid)
	if !r.judge.Direct(d, uid, who+", from "+from, now) && len(r.judge.Faults()) < 20 {
		r.t.Errorf("%7.1fs  an %s connection of %s passed the proxy by: from %s", time.Since(r.began).Seconds(), d, who, from)
	}
}

// plain writes an IPv4 address as such when it comes from a socket of both families.
func plain(address string) netip.AddrPort {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// probe dials a pod from outside, in both families.
func (r *chaosRun) probe(ctx context.Context, name string) {
	pod, _ := r.look(name)
	if pod == nil {
		return
	}
	for _, f := range families() {
		from, a, err := askPod(ctx, at(pod, f, appPort))
		if err == nil && a.Banner == name { // the address may be another pod's by now
			r.saw(chaos.Inbound, string(pod.UID), from, a.Peer)
		}
	}
}

// askPod makes one connection, and gives its own address and the answer.
func askPod(ctx context.Context, to netip.AddrPort) (from string, a answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return "", a, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+to.String()+"/", http.NoBody)
	if err != nil {
		return "", a, err
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", a, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		return "", a, fmt.Errorf("read the answer of %s: %w", to, err)
	}
	return conn.LocalAddr().String(), a, nil
}
