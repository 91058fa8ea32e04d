package link_test

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"istio-pod-network-controller/hack/cluster/internal/link"
	"istio-pod-network-controller/hack/cluster/internal/plan"
	"istio-pod-network-controller/hack/cluster/internal/space"
	"istio-pod-network-controller/test/kerneltest"
)

// TestNamespacesReachEachOtherAndNothingElse makes the two namespaces as `kc up` does and dials from the node's.
func TestNamespacesReachEachOtherAndNothingElse(t *testing.T) {
	kerneltest.Root(t)
	p := plan.Default("")
	controlPlane, node, second := hold(t), hold(t), hold(t)
	in(t, controlPlane, func() error { return link.ControlPlane(p) })
	// The first node twice, as after a power cut: its earlier namespace is still there.
	for _, holder := range []int{hold(t), second, node} {
		n := p.Nodes[0]
		if holder == second {
			n = p.Nodes[1]
		}
		in(t, controlPlane, func() error { return link.Join(n, holder) })
		in(t, holder, func() error { return link.Node(p, n) })
	}
	in(t, node, func() error { return link.Reach(p.Nodes[1]) })
	// What only pods of the second node have.
	pods := []netip.Addr{p.Nodes[1].Pods.V4.Addr().Next(), p.Nodes[1].Pods.V6.Addr().Next()}
	in(t, second, func() error {
		return errors.Join(exec.Command("/sbin/ip", "addr", "add", pods[0].String(), "dev", "lo").Run(),
			exec.Command("/sbin/ip", "addr", "add", pods[1].String(), "dev", "lo", "nodad").Run())
	})

	reachable := map[string]netip.Addr{
		"pod of another node, IPv4": pods[0], "pod of another node, IPv6": pods[1],
		"control plane, IPv4": p.ControlPlane.V4.Addr(),
		"control plane, IPv6": p.ControlPlane.V6.Addr(),
		"world, IPv4":         netip.MustParseAddr("203.0.113.10"),
		"world, IPv6":         netip.MustParseAddr("2001:db8:1::10"),
	}
	for name, addr := range reachable {
		t.Run(name, func(t *testing.T) {
			var listener net.Listener
			at := controlPlane
			if slices.Contains(pods, addr) {
				at = second
			}
			in(t, at, func() (err error) {
				listener, err = net.Listen("tcp", netip.AddrPortFrom(addr, 8080).String())
				return err
			})
			defer listener.Close()
			in(t, node, func() error { return dial(addr) })
		})
	}
	unreachable := map[string]netip.Addr{
		"another pod range": netip.MustParseAddr("10.244.77.1"),
		"the Internet":      netip.MustParseAddr("198.51.100.1"),
		"Internet, IPv6":    netip.MustParseAddr("2001:db8:ffff::1"),
	}
	for name, addr := range unreachable {
		for where, pid := range map[string]int{"control plane": controlPlane, "node": node} {
			t.Run(name+" from "+where, func(t *testing.T) {
				in(t, pid, func() error {
					if err := dial(addr); !errors.Is(err, syscall.EHOSTUNREACH) && !errors.Is(err, syscall.ENETUNREACH) {
						t.Errorf("dial %s: %v, want unreachable", addr, err)
					}
					return nil
				})
			})
		}
	}
}

func dial(addr netip.Addr) error {
	c, err := net.Dial("tcp", netip.AddrPortFrom(addr, 8080).String())
	if err != nil {
		return err
	}
	return c.Close()
}

func hold(t *testing.T) (pid int) {
	t.Helper()
	holder := exec.Command("/bin/sleep", "60")
	if err := space.Create(space.ControlPlane, holder.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
	return holder.Process.Pid
}

func in(t *testing.T, pid int, f func() error) {
	t.Helper()
	if err := space.Do(pid, space.ControlPlane, f); err != nil {
		t.Fatal(err)
	}
}
