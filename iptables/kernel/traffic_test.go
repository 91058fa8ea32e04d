package kernel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/test/kerneltest"
)

// Nothing bypasses the proxy, and what is open lives on, while a node's backend changes to and fro in the mode that has most
// to lose: packets pass the rules of both backends for a moment.
func TestTrafficLivesThroughAChangeOfBackend(t *testing.T) {
	pod, world := kerneltest.NewPod(t)
	kerneltest.Sysctl(t, pod, "net/ipv4/conf/all/rp_filter", "0")
	kerneltest.Sysctl(t, pod, "net/ipv4/conf/eth0/rp_filter", "0")
	proxy := kerneltest.Owner{UID: 0, GID: 1337}
	for port, banner := range map[int]string{15001: "PROXY", 15006: "PROXY", 8080: "APP"} {
		go kerneltest.Echo(kerneltest.ListenTCP(t, pod, proxy, true, fmt.Sprintf("[::]:%d", port)), fmt.Sprintf("%s:%d", banner, port))
	}
	go kerneltest.Echo(kerneltest.ListenTCP(t, world, kerneltest.App, false, "[::]:80"), "WORLD:80")
	all := allBackends(t)
	apply := func(e Backend) {
		if _, err := e.Apply(t.Context(), at(pod), tproxyRules(t)); err != nil {
			t.Fatal(err)
		}
	}
	apply(all["nftables"])
	streams := []stream{
		{world, kerneltest.Pod4 + ":8080", "PROXY:15006"},
		{world, "[" + kerneltest.Pod6 + "]:8080", "PROXY:15006"},
		{pod, kerneltest.Outside4 + ":80", "PROXY:15001"},
		{pod, "[" + kerneltest.Outside6 + "]:80", "PROXY:15001"},
	}
	made := load(t, streams)
	held := hold(t, streams)
	for range 10 {
		for _, name := range []string{"iptables nft", "nftables", "iptables legacy", "nftables", "iptables legacy", "iptables nft"} {
			apply(all[name])
			for i, c := range held {
				if err := ping(c); err != nil {
					t.Fatalf("after the change to %s: %s: %v", name, streams[i].dst, err)
				}
			}
		}
	}
	n := made()
	if n < 500 {
		t.Errorf("%d connections prove too little", n)
	}
	t.Logf("%d connections during 60 changes of backend; %d held ones lived on", n, len(held))
}

// load connects again and again, until the function that it gives is called for the number of connections.
func load(t *testing.T, streams []stream) (stop func() int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var made atomic.Int64
	for _, s := range streams {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := s.once(ctx); err != nil && ctx.Err() == nil {
					t.Errorf("%s: %v", s.dst, err)
				}
				made.Add(1)
			}
		})
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	return func() int64 { cancel(); wg.Wait(); return made.Load() }
}

// hold opens a connection of each stream, which stays open.
func hold(t *testing.T, streams []stream) (held []net.Conn) {
	t.Helper()
	for _, s := range streams {
		c, err := s.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		held = append(held, c)
	}
	return held
}

// stream is one direction of traffic and who must answer it.
type stream struct {
	from     *netns.NS
	dst, who string
}

func (s stream) open(ctx context.Context) (c net.Conn, err error) {
	err = kerneltest.As(s.from, kerneltest.App, func() error {
		d := net.Dialer{Timeout: 5 * time.Second}
		if c, err = d.DialContext(ctx, "tcp", s.dst); err != nil {
			return err
		}
		if err := c.SetDeadline(time.Now().Add(60 * time.Second)); err != nil {
			return errors.Join(err, c.Close())
		}
		line, err := bufio.NewReader(io.LimitReader(c, int64(len(s.who)+1))).ReadString('\n')
		if err != nil || line != s.who+"\n" {
			return errors.Join(fmt.Errorf("answered by %q, want %s", line, s.who), err, c.Close())
		}
		return nil
	})
	return c, err
}

func (s stream) once(ctx context.Context) error {
	c, err := s.open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(ping(c), c.Close())
}

func ping(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("!")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}
