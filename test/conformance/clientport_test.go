package conformance

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// A client may use one of its ports for connections to several ports of the pod. All of them lead to the proxy's port, where the kernel gives
// each a source of its own.
func TestRedirect_clientPortOfTwoConnections_reachesTheProxyTwice(t *testing.T) {
	for _, b := range backends(t) {
		for _, host := range []string{kerneltest.Pod4, kerneltest.Pod6} {
			t.Run(b.Name()+"/"+host, func(t *testing.T) {
				pod, world := kerneltest.NewPod(t)
				if _, err := b.Apply(t.Context(), pod.Path(), configuration{spec: iptables.DefaultSpec()}.rules(t)); err != nil {
					t.Fatal(err)
				}
				go kerneltest.Echo(kerneltest.ListenTCP(t, pod, kerneltest.Proxy, false, "[::]:15006"), "PROXY")
				for _, port := range []uint16{8080, 8090} {
					if err := reach(t, world, netip.AddrPortFrom(netip.MustParseAddr(host), port)); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// reach opens a connection from one and the same port, which the proxy must answer, and leaves it open until the test ends.
func reach(t *testing.T, from *netns.NS, to netip.AddrPort) error {
	t.Helper()
	d := net.Dialer{Timeout: 3 * time.Second, LocalAddr: &net.TCPAddr{Port: 40001}, Control: kerneltest.Option(unix.SOL_SOCKET, unix.SO_REUSEADDR)}
	return kerneltest.As(from, kerneltest.Owner{}, func() error {
		c, err := d.DialContext(t.Context(), "tcp", to.String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = c.Close() })
		if err := c.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
			return err
		}
		_, err = io.ReadFull(c, make([]byte, len("PROXY")))
		return err
	})
}
