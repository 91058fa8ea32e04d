package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// How much traffic is measured for each set of rules and direction, in so many rounds.
const (
	rounds      = 9
	connections = 800
	requests    = 1500
)

const appPort = 8080

// direction is traffic of one kind. With rules it ends at a port of the proxy, without at the application or the world.
type direction struct {
	name string
	from func(*pair) *netns.NS
	to   string
}

func directions() []direction {
	return []direction{
		{"inbound", func(p *pair) *netns.NS { return p.world }, podIP},
		{"outbound", func(p *pair) *netns.NS { return p.pod }, outsideIP},
	}
}

// traffic is what was measured: the time of each connection in microseconds, and the connections and requests per second of each round.
type traffic struct{ connect, connections, requests []float64 }

// packets compares traffic through the full set with traffic without rules, and with the iptables backend's rules.
func (b bench) packets(ctx context.Context) ([]row, error) {
	rules, err := iptables.Rules(fullSpec())
	if err != nil {
		return nil, err
	}
	pairs := map[string]*pair{}
	for name, kind := range map[string]backend{"none": nil, "nftables": b.netlink, "iptables": b.legacy} {
		p, err := newPair(ctx, []int{appPort, int(fullSpec().OutboundPort), int(fullSpec().InboundPort)}, []int{appPort})
		if err != nil {
			return nil, err
		}
		defer p.close()
		if kind != nil {
			if _, err := kind.Apply(ctx, p.pod.Path(), rules); err != nil {
				return nil, err
			}
		}
		pairs[name] = p
	}
	var rows []row
	for _, d := range directions() {
		met := map[string]*traffic{"none": {}, "nftables": {}, "iptables": {}}
		for range rounds {
			for name, p := range pairs {
				if err := d.from(p).Do(func() error { return met[name].send(netip.MustParseAddr(d.to)) }); err != nil {
					return nil, fmt.Errorf("%s, rules of %s: %w", d.name, name, err)
				}
			}
		}
		rows = append(rows, trafficRows(d.name, *met["nftables"], map[string]traffic{
			"through no rules": *met["none"], "through the iptables backend's": *met["iptables"],
		})...)
	}
	return rows, nil
}

func trafficRows(direction string, ours traffic, others map[string]traffic) (rows []row) {
	for _, other := range []string{"through no rules", "through the iptables backend's"} {
		t := others[other]
		name := func(what string) string {
			return fmt.Sprintf("%s, %s, through the full set against %s", direction, what, other)
		}
		rows = append(rows,
			row{name("time to connect"), "us p50", median(ours.connect), median(t.connect), "reported"},
			row{name("connections"), "1/s", median(ours.connections), median(t.connections), "reported"},
			row{name("requests on an open connection"), "1/s", median(ours.requests), median(t.requests), "reported"},
		)
	}
	return rows
}

// send makes a round of connections and of requests, from the namespace of the calling thread. It uses system calls directly:
// otherwise Go's scheduler would be measured, too.
func (t *traffic) send(to netip.Addr) error {
	started := time.Now()
	for range connections {
		start := time.Now()
		fd, err := connect(to)
		if err != nil {
			return err
		}
		t.connect = append(t.connect, float64(time.Since(start).Nanoseconds())/1000)
		if err := abort(fd); err != nil {
			return err
		}
	}
	t.connections = append(t.connections, connections/time.Since(started).Seconds())
	fd, err := connect(to)
	if err != nil {
		return err
	}
	started = time.Now()
	message := make([]byte, 64)
	for range requests {
		if err := errors.Join(whole(unix.Write, fd, message), whole(unix.Read, fd, message)); err != nil {
			return errors.Join(fmt.Errorf("make a request: %w", err), unix.Close(fd))
		}
	}
	t.requests = append(t.requests, requests/time.Since(started).Seconds())
	return unix.Close(fd)
}

// sendLimit bounds every wait in the kernel.
func sendLimit() *unix.Timeval { return &unix.Timeval{Sec: 5} }

func connect(to netip.Addr) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("make socket: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, sendLimit()),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, sendLimit()),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
	)
	if err == nil {
		err = retryInterrupted(func() error { return unix.Connect(fd, &unix.SockaddrInet4{Port: appPort, Addr: to.As4()}) })
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("connect to %s: %w", to, err), unix.Close(fd))
	}
	return fd, nil
}

// whole writes or reads all of a message.
func whole(call func(fd int, p []byte) (int, error), fd int, message []byte) error {
	return retryInterrupted(func() error {
		n, err := call(fd, message)
		if err == nil && n != len(message) {
			err = fmt.Errorf("%d of %d bytes", n, len(message))
		}
		return err
	})
}

// retryInterrupted repeats a call that a signal interrupts, such as those by which Go preempts threads.
func retryInterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// abort closes a connection at once, so that its port can be used again.
func abort(fd int) error {
	return errors.Join(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}), unix.Close(fd))
}
