package routing

import (
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/test/kerneltest"
)

func TestReadPolicy_rulesChangeMeanwhile_readsAgain(t *testing.T) {
	ns := kerneltest.New(t)
	change(t, ns, tproxy())
	open(t, ns, func(n *namespace) error {
		marked := kerneltest.InterruptDump(t, ns, n.conn.Fd(), unix.NETLINK_ROUTE)
		if err := n.readPolicy(); err != nil || !marked() || !n.routed() {
			t.Errorf("interrupted %t, error %v, routed %t", marked(), err, n.routed())
		}
		return nil
	})
}
