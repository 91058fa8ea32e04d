package conformance

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/test/kerneltest"
)

// A proxy that keeps the client's address connects to the application with that address as the source, and gets the answers. Envoy marks
// such connections; HAProxy and nginx do not, and it works without a mark.
func TestTProxy_proxyInClientsName_reachesItsApplication(t *testing.T) {
	owners := map[string]kerneltest.Owner{"as root, in the proxy's group": {UID: 0, GID: 1337}, "as the proxy's user": kerneltest.Proxy}
	families := map[string]struct{ client, app string }{
		"IPv4": {"93.184.216.34", "10.244.1.5:8080"}, "IPv6": {"fd00:99::34", "[fd00:10:244:1::5]:8080"},
	}
	for _, b := range backends(t) {
		w := newWorld(t, "ds")
		setup := configuration{spec: with(tproxy)}
		w.listen(t, setup)
		mustApply(t, b, w, setup)
		for who, owner := range owners {
			for name, f := range families {
				for how, mark := range map[string]int{"marked": 1337, "not marked": 0} {
					t.Run(strings.Join([]string{b.Name(), who, name, how}, "/"), func(t *testing.T) {
						got, err := w.askInName(t.Context(), owner, mark, netip.MustParseAddr(f.client), f.app)
						if err != nil || !strings.HasPrefix(got, "APP:8080 ") {
							t.Errorf("answered by %q, error %v; want the application", got, err)
						}
					})
				}
			}
		}
	}
}

// Connection tracking may forget such a connection. If the application speaks first then, the proxy's packets count as answers, and mark the
// connection again nevertheless.
func TestTProxy_connectionInClientsNameIsForgotten_goesOn(t *testing.T) {
	for _, b := range backends(t) {
		w := newWorld(t, "ds")
		mustApply(t, b, w, configuration{spec: with(tproxy)})
		listener := kerneltest.ListenTCP(t, w.pod(), kerneltest.App, false, kerneltest.Pod4+":8080")
		d := inName(0, netip.MustParseAddr("198.51.100.7"))
		// The client must not refuse what the pod sends it meanwhile.
		kerneltest.Shell(t, w.spaces["world"], "nft 'add table ip x; add chain ip x c { type filter hook prerouting priority -300; }; add rule ip x c ip daddr 198.51.100.7 drop'", "")
		err := kerneltest.As(w.pod(), kerneltest.Proxy, func() error {
			proxy, err := d.DialContext(t.Context(), "tcp", kerneltest.Pod4+":8080")
			if err != nil {
				return err
			}
			defer proxy.Close()
			app, err := listener.Accept()
			if err != nil {
				return err
			}
			defer app.Close()
			kerneltest.Shell(t, w.pod(), "conntrack -F", "")
			_, errApp := app.Write([]byte("from the application"))
			_, errProxy := proxy.Write([]byte("from the proxy"))
			errDeadline := proxy.SetReadDeadline(time.Now().Add(3 * time.Second))
			_, errRead := proxy.Read(make([]byte, 1))
			return errors.Join(errApp, errProxy, errDeadline, errRead)
		})
		if err != nil {
			t.Errorf("%s: %v", b.Name(), err)
		}
	}
}

// Programs for VPNs set src_valid_mark in the pod, also long after the rules are there: the next look makes it harmless.
func TestTProxy_srcValidMark_inboundReachesTheProxy(t *testing.T) {
	for _, b := range backends(t) {
		pod, world := kerneltest.NewPod(t)
		rules := configuration{spec: with(tproxy)}.rules(t)
		ask := func() string {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			reply, _ := kerneltest.Dial(ctx, world, kerneltest.App, "", kerneltest.Pod4+":8080")
			return reply.Banner
		}
		apply := func() bool {
			out, err := b.Apply(t.Context(), pod.Path(), rules)
			if err != nil {
				t.Fatal(err)
			}
			return out.Changed()
		}
		apply()
		listenInbound(t, pod)
		kerneltest.Shell(t, pod, "echo 1 >/proc/sys/net/ipv4/conf/all/src_valid_mark", "")
		if got := ask(); got != "" {
			t.Errorf("%s: with src_valid_mark alone answered by %q: the kernel has changed", b.Name(), got)
		}
		if changed := apply(); !changed {
			t.Errorf("%s: nothing was found to mend", b.Name())
		}
		if got := ask(); !strings.HasPrefix(got, "PROXY") {
			t.Errorf("%s: answered by %q", b.Name(), got)
		}
		if changed := apply(); changed {
			t.Errorf("%s: it was mended twice", b.Name())
		}
	}
}

// askInName connects from the pod to dst with a source address that is not the pod's.
func (w world) askInName(ctx context.Context, owner kerneltest.Owner, mark int, client netip.Addr, dst string) (text string, err error) {
	d := inName(mark, client)
	err = kerneltest.As(w.pod(), owner, func() error {
		c, err := d.DialContext(ctx, "tcp", dst)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
			return err
		}
		b, err := io.ReadAll(c)
		text = string(b)
		return err
	})
	return text, err
}

// inName returns a dialer whose connections have a source address that is not the pod's.
func inName(mark int, client netip.Addr) net.Dialer {
	return net.Dialer{
		Timeout: 2 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(client, 0)),
		Control: func(_, _ string, raw syscall.RawConn) error {
			var errs error
			errControl := raw.Control(func(fd uintptr) {
				level, name := unix.SOL_IP, unix.IP_TRANSPARENT
				if client.Is6() {
					level, name = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
				}
				errs = errors.Join(unix.SetsockoptInt(int(fd), level, name, 1), unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark))
			})
			return errors.Join(errs, errControl)
		},
	}
}
