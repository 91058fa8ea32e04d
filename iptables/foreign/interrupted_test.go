package foreign

import (
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/test/kerneltest"
)

func interrupt(t *testing.T, ns *netns.NS) (marked func() bool) {
	t.Helper()
	conn, err := ns.Netlink(unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	return kerneltest.InterruptDump(t, ns, conn.Fd(), unix.NETLINK_NETFILTER)
}

func TestFind_rulesChangeMeanwhile_readsAgain(t *testing.T) {
	ns := kerneltest.New(t)
	kerneltest.Shell(t, ns, "iptables-nft -t nat -N ISTIO_OUTPUT; iptables-nft -t nat -A ISTIO_OUTPUT -p tcp -j RETURN; iptables-nft -t nat -A OUTPUT -p tcp -j ISTIO_OUTPUT", "")
	marked := interrupt(t, ns)
	if found := find(t, ns); found != "Istio: chain ISTIO_OUTPUT in table ip nat" || !marked() {
		t.Errorf("found %q, interrupted %t", found, marked())
	}
}

func TestPreempting_rulesChangeMeanwhile_readsAgain(t *testing.T) {
	ns := kerneltest.New(t)
	kerneltest.Shell(t, ns, "nft 'table inet x {\nchain c { type filter hook output priority -310; tcp dport 80 drop; }\n}'", "")
	marked := interrupt(t, ns)
	if lines, err := Preempting(t.Context(), ns, defaultOurs(t)); err != nil || len(lines) != 1 || !marked() {
		t.Errorf("lines %q, error %v, interrupted %t", lines, err, marked())
	}
}
