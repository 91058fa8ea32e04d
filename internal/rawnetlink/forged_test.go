package rawnetlink_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/test/kerneltest"
)

// A process of the pod with NET_ADMIN may send to any netlink socket of its namespace, and the number of ours is easily guessed.
func TestNobodyButTheKernelCanAnswer(t *testing.T) {
	for name, protocol := range map[string]int{"routes": unix.NETLINK_ROUTE, "nftables": unix.NETLINK_NETFILTER} {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.New(t)
			var c *rawnetlink.Conn
			err := ns.Inside(func() (err error) { c, err = rawnetlink.Open(protocol); return err })
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			address, err := unix.Getsockname(c.Fd())
			if err != nil {
				t.Fatal(err)
			}
			pod, err := ns.Socket(unix.AF_NETLINK, unix.SOCK_RAW, protocol)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(pod) //nolint:errcheck // the test is over
			forged := make([]byte, unix.SizeofNlMsghdr)
			binary.NativeEndian.PutUint32(forged, unix.SizeofNlMsghdr)
			binary.NativeEndian.PutUint16(forged[4:], unix.NLMSG_DONE)
			if err := unix.Sendto(pod, forged, 0, address); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("the forged answer to %v: %v, want a refusal", address, err)
			}
		})
	}
}
