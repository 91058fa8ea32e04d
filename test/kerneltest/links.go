package kerneltest

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
)

// JoinByVeth joins two namespaces by a veth pair and puts both ends up.
func JoinByVeth(t testing.TB, a *netns.NS, nameA string, b *netns.NS, nameB string) {
	t.Helper()
	must(t, a.Inside(func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: nameA}, PeerName: nameB, PeerNamespace: netlink.NsFd(b.Fd()),
		})
	}))
	AddAddresses(t, a, nameA)
	AddAddresses(t, b, nameB)
	// An address that is added before the kernel has seen the carrier cannot be used at once.
	for ns, name := range map[*netns.NS]string{a: nameA, b: nameB} {
		Eventually(t, name+" is up", func() bool {
			up := false
			must(t, ns.Inside(func() error {
				link, err := netlink.LinkByName(name)
				up = err == nil && link.Attrs().OperState == netlink.OperUp
				return err
			}))
			return up
		})
	}
}

// Eventually waits for a condition, for half a minute at most: what the kernel does later takes seconds on a busy machine.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	tick, end := time.NewTicker(time.Millisecond), time.After(30*time.Second)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("never: %s", what)
		}
	}
}

// AddAddresses puts an interface up and adds addresses to it, which can be used at once.
func AddAddresses(t testing.TB, ns *netns.NS, name string, addrs ...string) {
	t.Helper()
	var added []net.IP
	must(t, ns.Inside(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		for _, a := range addrs {
			parsed, err := netlink.ParseAddr(a)
			if err != nil {
				return err
			}
			if parsed.IP.To4() == nil {
				parsed.Flags = unix.IFA_F_NODAD
			}
			if err := netlink.AddrAdd(link, parsed); err != nil {
				return fmt.Errorf("add %s to %s: %w", a, name, err)
			}
			added = append(added, parsed.IP)
		}
		return nil
	}))
	// The kernel makes an IPv6 address local some time after it has said that it is there.
	for _, ip := range added {
		Eventually(t, ip.String()+" is local", func() bool {
			local := false
			must(t, ns.Inside(func() error {
				routes, err := netlink.RouteGet(ip)
				local = err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
				return nil
			}))
			return local
		})
	}
}

// AddRoute adds a route to dst by a gateway.
func AddRoute(t testing.TB, ns *netns.NS, dst, gateway string) {
	t.Helper()
	_, to, err := net.ParseCIDR(dst)
	must(t, err)
	must(t, ns.Inside(func() error { return netlink.RouteAdd(&netlink.Route{Dst: to, Gw: net.ParseIP(gateway)}) }))
}

// AddLocalRoute makes every address of dst local to the namespace.
func AddLocalRoute(t testing.TB, ns *netns.NS, dst string) {
	t.Helper()
	_, to, err := net.ParseCIDR(dst)
	must(t, err)
	must(t, ns.Inside(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: to, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Table: unix.RT_TABLE_LOCAL,
		})
	}))
}

// Sysctl sets a variable below /proc/sys of the namespace.
func Sysctl(t testing.TB, ns *netns.NS, name, value string) {
	t.Helper()
	must(t, netns.SetSysctl(ns, name, value))
}
