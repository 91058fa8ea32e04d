package main

import (
	"io"
	"net"
	"net/netip"
	"os"
	"testing"

	"istio-pod-network-controller/hack/cluster/internal/kerneltest"
)

// asProxy makes the test binary be the proxy, so that it can run as another user in another namespace.
const asProxy = "TESTPROXY=1"

func TestMain(m *testing.M) {
	if os.Getenv("TESTPROXY") == "1" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestRedirectedConnectionsReachTheirDestination(t *testing.T) {
	p := kerneltest.NewPod(t)
	p.Run(t, []string{asProxy}, "/proc/self/exe")
	p.Serve(t, true, 8080)
	p.Serve(t, false, 8080)
	pods, worlds := p.Addrs()
	for i, family := range []string{"IPv4", "IPv6"} {
		pod, world := netip.AddrPortFrom(pods[i], 8080), netip.AddrPortFrom(worlds[i], 8080)
		passthrough := passthroughSource(pod.Addr()).AddrPort().Addr().Unmap()
		t.Run(family+" outbound", func(t *testing.T) {
			peer, local, err := p.Ask(t, true, world)
			if err != nil || peer.Addr() != pod.Addr() || local != world {
				t.Fatalf("the world saw %s -> %s, %v; want %s -> %s", peer, local, err, pod.Addr(), world)
			}
			want(t, p, connection{Direction: outboundDirection, OriginalDst: world.String()})
		})
		t.Run(family+" inbound", func(t *testing.T) {
			peer, local, err := p.Ask(t, false, pod)
			if err != nil || peer.Addr() != passthrough || local != pod {
				t.Fatalf("the application saw %s -> %s, %v; want %s -> %s", peer, local, err, passthrough, pod)
			}
			want(t, p, connection{Direction: inboundDirection, OriginalDst: pod.String()})
		})
		t.Run(family+" to itself", func(t *testing.T) {
			own := netip.AddrPortFrom(pod.Addr(), 15001)
			if _, _, err := p.Ask(t, false, own); err == nil {
				t.Fatal("the proxy answered though the connection was meant for itself")
			}
			want(t, p, connection{Direction: inboundDirection, OriginalDst: own.String(), Error: errLoop.Error()})
		})
	}
	var counts map[direction]count
	p.Get(t, "/counts", &counts)
	if got := counts[inboundDirection]; got != (count{OK: 2, Failed: 2}) {
		t.Errorf("inbound counts %+v", got)
	}
	if got := counts[outboundDirection]; got != (count{OK: 2}) {
		t.Errorf("outbound counts %+v", got)
	}
}

func TestJournalRemembersTheLastOnes(t *testing.T) {
	j := newJournal(io.Discard)
	for range remembered + 2 {
		j.add(connection{Direction: inboundDirection})
	}
	j.add(connection{Direction: outboundDirection, Error: "refused", Peer: "last"})
	last := j.connections()
	if len(last) != remembered || last[remembered-1].Peer != "last" {
		t.Errorf("%d remembered, last is %+v", len(last), last[len(last)-1])
	}
	if got := j.totals(); got[inboundDirection].OK != remembered+2 || got[outboundDirection].Failed != 1 {
		t.Errorf("counts %+v", got)
	}
}

func TestPipePassesOnTheEndAndKeepsTheOtherWay(t *testing.T) {
	clientEnd, proxyClient := tcpPair(t)
	proxyServer, serverEnd := tcpPair(t)
	go pipe(proxyServer, proxyClient)
	go pipe(proxyClient, proxyServer)
	if _, err := io.WriteString(clientEnd, "question"); err != nil {
		t.Fatal(err)
	}
	if err := clientEnd.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(serverEnd); string(got) != "question" || err != nil {
		t.Fatalf("the server got %q, %v", got, err)
	}
	if _, err := io.WriteString(serverEnd, "answer"); err != nil {
		t.Fatal(err)
	}
	if err := serverEnd.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(clientEnd); string(got) != "answer" || err != nil {
		t.Errorf("the client got %q, %v", got, err)
	}
}

// want checks the proxy's last connection, time and peer aside.
func want(t *testing.T, p *kerneltest.Pod, c connection) {
	t.Helper()
	var all []connection
	p.Get(t, "/connections", &all)
	if len(all) == 0 {
		t.Fatal("the proxy saw no connection")
	}
	last := all[len(all)-1]
	last.Time, last.Peer = c.Time, c.Peer
	if last != c {
		t.Errorf("last connection %+v, want %+v", last, c)
	}
}

func tcpPair(t *testing.T) (dialled, accepted *net.TCPConn) {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if dialled, err = net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr)); err != nil {
		t.Fatal(err)
	}
	if accepted, err = l.AcceptTCP(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = dialled.Close(), accepted.Close() })
	return dialled, accepted
}
