package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
)

// Addresses of a pod and of what is around it.
const (
	podIP     = "10.244.1.5"
	gatewayIP = "10.244.1.1"
	outsideIP = "93.184.216.34"
)

// pair is a pod's namespace joined to another one, the world, both with echo servers.
type pair struct {
	pod, world *netns.NS
	servers    []net.Listener
}

// newPair makes the namespaces, and servers at the ports: the application's and the proxy's in the pod, one in the world.
func newPair(ctx context.Context, inPod, inWorld []int) (p *pair, err error) {
	p = &pair{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.pod, err = netns.New(); err != nil {
		return p, err
	}
	if p.world, err = netns.New(); err != nil {
		return p, err
	}
	if err := p.join(); err != nil {
		return p, fmt.Errorf("join namespaces: %w", err)
	}
	for _, port := range inPod {
		if err := p.serve(ctx, p.pod, port); err != nil {
			return p, err
		}
	}
	for _, port := range inWorld {
		if err := p.serve(ctx, p.world, port); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (p *pair) join() error {
	err := p.world.Do(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "w0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(p.pod.Fd())}
		return errors.Join(netlink.LinkAdd(veth), up("w0", gatewayIP+"/24"), up("lo", outsideIP+"/32"))
	})
	if err != nil {
		return err
	}
	return p.pod.Do(func() error {
		if err := errors.Join(up("lo"), up("eth0", podIP+"/24")); err != nil {
			return err
		}
		_, all, err := net.ParseCIDR("0.0.0.0/0")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Dst: all, Gw: net.ParseIP(gatewayIP)})
	})
}

// up adds addresses to an interface of the calling thread's namespace and sets it up.
func up(name string, addresses ...string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, a := range addresses {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
}

// serve repeats whatever comes to a port, by TPROXY, too.
func (p *pair) serve(ctx context.Context, ns *netns.NS, port int) error {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		errControl := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1) })
		return errors.Join(err, errControl)
	}}
	var l net.Listener
	err := ns.Do(func() (err error) {
		l, err = config.Listen(ctx, "tcp4", fmt.Sprintf("0.0.0.0:%d", port))
		return err
	})
	if err != nil {
		return err
	}
	p.servers = append(p.servers, l)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c) // until the client ends it, in whatever way
			}()
		}
	}()
	return nil
}

// close ends the servers and lets the namespaces go, with all that is in them.
func (p *pair) close() {
	for _, l := range p.servers {
		_ = l.Close()
	}
	for _, ns := range []*netns.NS{p.pod, p.world} {
		if ns != nil {
			_ = ns.Close()
		}
	}
}
