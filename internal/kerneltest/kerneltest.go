// Package kerneltest gives tests real network namespaces: fresh ones that no path leads to, so that nothing is left behind
// however a test ends.
package kerneltest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	vishns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
)

// Addresses of the two namespaces of NewPod. World also holds Outside, as a stand-in for everything beyond the cluster.
const (
	Pod4     = "10.244.1.5"
	Pod6     = "fd00:10:244:1::5"
	World4   = "10.244.1.1"
	World6   = "fd00:10:244:1::1"
	Outside4 = "93.184.216.34"
	Outside6 = "2001:db8::34"
)

// New makes a fresh namespace with lo up. Without the right to, the test is skipped, or fails where REQUIRE_KERNEL is set.
func New(t testing.TB) *netns.NS {
	t.Helper()
	if os.Geteuid() != 0 {
		refuse := t.Skipf
		if os.Getenv("REQUIRE_KERNEL") != "" {
			refuse = t.Fatalf
		}
		refuse("network namespaces need root; this is uid %d", os.Geteuid())
	}
	ns, err := netns.New()
	must(t, err)
	t.Cleanup(func() { must(t, ns.Close()) })
	must(t, ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	}))
	return ns
}

// NewPod makes a pod's namespace with eth0 and a world that routes everything back, joined by a veth pair.
func NewPod(t testing.TB) (pod, world *netns.NS) {
	t.Helper()
	pod, world = New(t), New(t)
	must(t, world.Do(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "w0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(pod.Fd())}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		if err := up("w0", World4+"/24", World6+"/64"); err != nil {
			return err
		}
		return up("lo", Outside4+"/32", Outside6+"/128")
	}))
	must(t, pod.Do(func() error {
		// The application may listen on any port, as in a pod.
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0o644); err != nil {
			return err
		}
		if err := up("eth0", Pod4+"/24", Pod6+"/64"); err != nil {
			return err
		}
		for _, gw := range []string{World4, World6} {
			if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(gw), Dst: defaultOf(gw)}); err != nil {
				return fmt.Errorf("default route by %s: %w", gw, err)
			}
		}
		return nil
	}))
	return pod, world
}

// Guard is what opens namespaces in tests: it refuses the machine's own.
func Guard(t testing.TB) netns.Guard {
	t.Helper()
	g, err := netns.NewGuard()
	must(t, err)
	return g
}

func up(name string, addrs ...string) error {
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
	}
	return nil
}

func defaultOf(gw string) *net.IPNet {
	if netip.MustParseAddr(gw).Is4() {
		return &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	}
	return &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
}

// Handle is the namespace for a netlink library's NewHandleAt.
func Handle(ns *netns.NS) vishns.NsHandle { return vishns.NsHandle(ns.Fd()) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
