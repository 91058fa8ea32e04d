// Package link joins the control plane's network namespace and the nodes', and closes every other way.
package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/hack/cluster/internal/plan"
)

// nodeEnd is a node's name for its end of its link, bridge what joins the other ends in the control plane's namespace.
const (
	nodeEnd = "eth0"
	bridge  = "nodes"
)

// ControlPlane sets up the namespace that it runs in: the world's addresses, and no way out.
func ControlPlane(p plan.Plan) error {
	if err := setSysctls(map[string]string{
		// A test server binds any address of the world's range, though none is on an interface.
		"net/ipv6/ip_nonlocal_bind": "1",
		"net/ipv4/ip_nonlocal_bind": "1",
	}); err != nil {
		return err
	}
	loopback, err := up("lo")
	if err != nil {
		return err
	}
	for _, world := range p.World.Both() {
		r := &netlink.Route{Dst: ipNet(world), Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, LinkIndex: loopback, Scope: netlink.SCOPE_HOST}
		if err := netlink.RouteAdd(r); err != nil {
			return fmt.Errorf("answer for %s: %w", world, err)
		}
	}
	attrs := netlink.LinkAttrs{Name: bridge, HardwareAddr: hardware(p.ControlPlane)}
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("make a bridge for the nodes: %w", err)
	}
	return errors.Join(address(bridge, p.ControlPlane), unreachable(p.Pods, p.Services))
}

// Join joins the namespace that it runs in, which is the control plane's, to the node that nodePID holds. The link to a node of an earlier
// boot goes first: the kernel may take seconds to remove it with the namespace at its other end.
func Join(n plan.Node, nodePID int) error {
	master, err := netlink.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find %s: %w", bridge, err)
	}
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: n.Name, MasterIndex: master.Attrs().Index},
		PeerName:  nodeEnd, PeerNamespace: netlink.NsPid(nodePID), PeerHardwareAddr: hardware(n.Addr),
	}
	var absent netlink.LinkNotFoundError
	switch old, err := netlink.LinkByName(n.Name); {
	case err == nil:
		if err := netlink.LinkDel(old); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remove the link to the earlier node: %w", err)
		}
	case !errors.As(err, &absent):
		return fmt.Errorf("find %s: %w", n.Name, err)
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("join the namespaces by a veth pair: %w", err)
	}
	if _, err := up(n.Name); err != nil {
		return err
	}
	return Reach(n)
}

// Reach sends what is for a node's pods to the node.
func Reach(n plan.Node) error { return via(n.Pods, n.Addr) }

// hardware is a link's address, made of its IPv4 address: that of a node which boots again is the one that others remember.
func hardware(d plan.Dual) net.HardwareAddr {
	return append(net.HardwareAddr{2, 0}, d.V4.Addr().AsSlice()...)
}

// Node sets up the namespace that it runs in, after Join, whose veth pair ends here: it forwards between pods, other nodes and the control plane's namespace only.
func Node(p plan.Plan, n plan.Node) error {
	if _, err := up("lo"); err != nil {
		return err
	}
	if err := address(nodeEnd, n.Addr); err != nil {
		return err
	}
	if err := setSysctls(map[string]string{
		"net/ipv4/ip_forward":          "1",
		"net/ipv6/conf/all/forwarding": "1",
		// kube-proxy's translations must apply to what one pod of the bridge sends to another.
		"net/bridge/bridge-nf-call-iptables":  "1",
		"net/bridge/bridge-nf-call-ip6tables": "1",
	}); err != nil {
		return err
	}
	if err := via(p.World, p.ControlPlane); err != nil {
		return err
	}
	// Without a route a connection to a service fails before kube-proxy can translate it.
	if err := via(p.Services, p.ControlPlane); err != nil {
		return err
	}
	return unreachable(p.Pods)
}

// address adds addresses of both families to one end of the link and sets it up.
func address(name string, d plan.Dual) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	for _, prefix := range d.Both() {
		ip := &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
		// Nobody else can have the address: waiting for an answer would only cost a second.
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ip, Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("give %s to %s: %w", prefix, name, err)
		}
	}
	_, err = up(name)
	return err
}

// up also brings the routes that belong to the link's own addresses.
func up(name string) (index int, err error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("find %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return 0, fmt.Errorf("set %s up: %w", name, err)
	}
	return link.Attrs().Index, nil
}

// via sends both families of a range through a neighbour, again or for the first time.
func via(to, gateway plan.Dual) error {
	for i, dst := range to.Both() {
		r := &netlink.Route{Dst: ipNet(dst), Gw: gateway.Both()[i].Addr().AsSlice()}
		if err := netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("route %s: %w", dst, err)
		}
	}
	return nil
}

// unreachable closes the given ranges, and everything that no other route names.
func unreachable(ranges ...plan.Dual) error {
	everything := plan.Dual{V4: netip.PrefixFrom(netip.IPv4Unspecified(), 0), V6: netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
	for _, d := range append(ranges, everything) {
		for _, dst := range d.Both() {
			r := &netlink.Route{Dst: ipNet(dst), Type: unix.RTN_UNREACHABLE, Priority: 1 << 16}
			if err := netlink.RouteAdd(r); err != nil {
				return fmt.Errorf("make %s unreachable: %w", dst, err)
			}
		}
	}
	return nil
}

// setSysctls writes the settings of the calling thread's network namespace.
func setSysctls(values map[string]string) error {
	for key, value := range values {
		file := filepath.Join("/proc/sys", key)
		if err := os.WriteFile(file, []byte(value), 0); err != nil {
			return fmt.Errorf("set %s: %w", strings.ReplaceAll(key, "/", "."), err)
		}
	}
	return nil
}

// ipNet is the older form that netlink takes.
func ipNet(p netip.Prefix) *net.IPNet {
	p = p.Masked()
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
