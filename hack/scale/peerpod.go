package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"istio-pod-network-controller/internal/netns"
)

// The banners of the two that may answer a connection: the proxy, or the client's own destination.
const (
	byProxy  = "proxy"
	directly = "direct"
)

// The pod's link, and the world's end of it, for `ip -batch`. The world's end has the address of a host that is not the pod's neighbour, too.
const (
	podLink = `link set lo up
link add eth0 type veth peer name w0 netns %s
addr add 10.244.1.5/24 dev eth0
addr add fd00:10:244:1::5/64 dev eth0 nodad
link set eth0 up
route add 0.0.0.0/0 via 10.244.1.1
route add ::/0 via fd00:10:244:1::1
`
	worldLink = `addr add 10.244.1.1/24 dev w0
addr add 93.184.216.34/32 dev w0
addr add fd00:10:244:1::1/64 dev w0 nodad
addr add fd00:99::34/128 dev w0 nodad
link set w0 up
`
)

// editedPort is the port of the world that the pods' annotation excludes and does not exclude in turn.
const editedPort = 3306

// meshPod is a pod of the mesh with its application and proxy, or at least their listeners, and a world around it.
type meshPod struct {
	*sandbox
	world  *netns.NS
	closed []net.Listener
}

// newMeshPod joins a sandbox to a world of its own, and waits until both reach each other.
func newMeshPod(ctx context.Context, s *sandbox) (p *meshPod, err error) {
	p = &meshPod{sandbox: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.world, err = netns.New(); err != nil {
		return p, err
	}
	// Links of the world come with the pod's.
	for _, batch := range []struct{ netns, text string }{{s.mounted.Path(), fmt.Sprintf(podLink, p.world.Path())}, {p.world.Path(), worldLink}} {
		cmd := exec.CommandContext(ctx, "nsenter", "--net="+batch.netns, "ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(batch.text)
		if out, err := cmd.CombinedOutput(); err != nil {
			return p, fmt.Errorf("join a pod to its world: %w: %s", err, out)
		}
	}
	for _, l := range []struct {
		ns     *netns.NS
		port   int
		banner string
	}{{s.mounted, 15001, byProxy}, {s.mounted, 15006, byProxy}, {s.mounted, 8080, directly}, {p.world, 80, directly}, {p.world, editedPort, directly}} {
		if err := p.listen(l.ns, l.port, l.banner); err != nil {
			return p, err
		}
	}
	return p, eventually(ctx, time.Minute, "pod and world reach each other", func(ctx context.Context) error {
		if seen := p.probe(ctx); seen[directly] != len(p.streams()) {
			return fmt.Errorf("answers: %v", seen)
		}
		return nil
	})
}

// listen answers connections with a banner.
func (p *meshPod) listen(ns *netns.NS, port int, banner string) error {
	return ns.Inside(func() error {
		l, err := net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
		if err != nil {
			return err
		}
		p.closed = append(p.closed, l)
		go func() { // the listener stays in its namespace
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					_, _ = io.WriteString(c, banner)
					_, _ = io.Copy(c, c)
					_ = c.Close()
				}()
			}
		}()
		return nil
	})
}

func (p *meshPod) close() error {
	var errs []error
	for _, l := range p.closed {
		errs = append(errs, l.Close())
	}
	if p.world != nil {
		errs = append(errs, p.world.Close())
	}
	return errors.Join(errs...)
}

// stream is one direction of traffic, by IPv4 or IPv6.
type stream struct {
	from *netns.NS
	to   string
}

// streams are those that a mesh redirects.
func (p *meshPod) streams() []stream {
	return []stream{{p.mounted, "93.184.216.34:80"}, {p.mounted, "[fd00:99::34]:80"}, {p.world, "10.244.1.5:8080"}, {p.world, "[fd00:10:244:1::5]:8080"}}
}

// edited returns who answers at the port that the pod's annotation may exclude.
func (p *meshPod) edited(ctx context.Context) string {
	return stream{p.mounted, fmt.Sprintf("93.184.216.34:%d", editedPort)}.ask(ctx)
}

// probe connects once in each direction, and counts who answers: "" is nobody.
func (p *meshPod) probe(ctx context.Context) map[string]int {
	seen := map[string]int{}
	for _, s := range p.streams() {
		seen[s.ask(ctx)]++
	}
	return seen
}

func (s stream) ask(ctx context.Context) (by string) {
	_ = s.from.Inside(func() error {
		c, banner := open(ctx, s.to)
		if c != nil {
			_ = c.Close()
		}
		by = banner
		return nil
	})
	return by
}

// open connects from the calling thread's namespace, and returns the banner of who answers, "" if nobody does within a second.
func open(ctx context.Context, to string) (net.Conn, string) {
	d := net.Dialer{Timeout: time.Second}
	c, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, ""
	}
	return c, reply(c)
}

func reply(c net.Conn) string {
	b := make([]byte, len(directly)+1)
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return ""
	}
	n, err := c.Read(b)
	if err != nil {
		return ""
	}
	return string(b[:n])
}

// load is traffic in all directions: new connections one after the other, and one in each that stays open.
type load struct {
	made, past, failed atomic.Int64
	kept               []net.Conn
	stop               func()
}

func (p *meshPod) load(ctx context.Context) (*load, error) {
	ctx, cancel := context.WithCancel(ctx)
	var l load
	var group sync.WaitGroup
	l.stop = func() {
		cancel()
		group.Wait()
	}
	for _, s := range p.streams() {
		err := s.from.Inside(func() error {
			c, by := open(ctx, s.to)
			if by != byProxy {
				return fmt.Errorf("%s is answered by %q before the load", s.to, by)
			}
			l.kept = append(l.kept, c)
			return nil
		})
		if err != nil {
			l.stop()
			return nil, err
		}
		group.Go(func() { _ = s.from.Inside(func() error { return l.connect(ctx, s.to) }) })
	}
	return &l, nil
}

// connect makes connections until ctx ends, and counts what became of them.
func (l *load) connect(ctx context.Context, to string) error {
	for ctx.Err() == nil {
		c, by := open(ctx, to)
		if c != nil {
			_ = c.Close()
		}
		switch {
		case ctx.Err() != nil:
		case by == directly:
			l.past.Add(1)
		case by != byProxy:
			l.failed.Add(1)
		}
		l.made.Add(1)
	}
	return nil
}

// broken says how many of the open connections carry nothing any more, and closes them.
func (l *load) broken() (n int) {
	for _, c := range l.kept {
		_ = c.SetDeadline(time.Now().Add(time.Second))
		if _, err := io.WriteString(c, byProxy); err != nil || reply(c) != byProxy {
			n++
		}
		_ = c.Close()
	}
	return n
}

// wanted returns who shall answer at the port that the pod's annotation excludes or not.
func (p *meshPod) wanted() string {
	if p.pod.Annotations[excludeOutboundPorts] == "" {
		return byProxy
	}
	return directly
}

// captured returns an error unless the proxy answers in all directions.
func (p *meshPod) captured(ctx context.Context) error {
	if seen := p.probe(ctx); seen[byProxy] != len(p.streams()) {
		return fmt.Errorf("answers: %v", seen)
	}
	return nil
}
