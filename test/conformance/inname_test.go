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

// askInName connects from the pod to dst with a source address that is not the pod's.
func (w world) askInName(ctx context.Context, owner kerneltest.Owner, mark int, client netip.Addr, dst string) (text string, err error) {
	d := net.Dialer{
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
