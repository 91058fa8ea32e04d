package kerneltest

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/hack/cluster/internal/space"
)

// hold makes a network namespace for as long as the test runs.
func hold(t *testing.T) (pid int) {
	t.Helper()
	holder := exec.Command("/bin/sleep", "300")
	if err := space.Create(space.ControlPlane, holder.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
	return holder.Process.Pid
}

// proxyMark and routeTable are Istio's numbers for what is delivered to the proxy by its mark.
const (
	proxyMark  = 1337
	routeTable = 133
)

// routeMarked delivers every packet with the mark to the namespace of the calling thread, whatever its destination.
func routeMarked() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for family, all := range map[int]string{unix.AF_INET: "0.0.0.0/0", unix.AF_INET6: "::/0"} {
		rule := netlink.NewRule()
		rule.Family, rule.Mark, rule.Table = family, proxyMark, routeTable
		if err := netlink.RuleAdd(rule); err != nil {
			return err
		}
		_, everything, err := net.ParseCIDR(all)
		if err != nil {
			return err
		}
		route := netlink.Route{LinkIndex: lo.Attrs().Index, Dst: everything, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Table: routeTable}
		if err := netlink.RouteAdd(&route); err != nil {
			return err
		}
	}
	return nil
}

// in runs f in one of the two namespaces and fails the test if it fails.
func (p *Pod) in(t *testing.T, pid int, f func() error) {
	t.Helper()
	if err := space.Do(pid, space.ControlPlane, f); err != nil {
		t.Fatal(err)
	}
}

// http asks from the world, as a kubelet does from the node.
func (p *Pod) http() *http.Client {
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = space.Do(p.world, space.ControlPlane, func() (err error) {
				conn, err = new(net.Dialer).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
	}}
}

// parse writes an IPv4 address as such when a socket for both families saw it.
func parse(t *testing.T, address string) netip.AddrPort {
	t.Helper()
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
