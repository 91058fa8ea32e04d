package nftables

import (
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// What has changed while it was read is no difference, and nothing of others.
func TestRead_tableChangesMeanwhile_readsAgain(t *testing.T) {
	for name, read := range map[string]func(t *testing.T, ns *netns.NS, have outline, ref reference) (iptables.Drift, bool){
		"the outline": func(t *testing.T, ns *netns.NS, _ outline, ref reference) (iptables.Drift, bool) {
			t.Helper()
			o, err := readOutline(t.Context(), ns)
			if err != nil {
				t.Fatal(err)
			}
			return o.differences(ref.outline), o.foreign
		},
		"the content": func(t *testing.T, ns *netns.NS, have outline, ref reference) (iptables.Drift, bool) {
			t.Helper()
			drift, err := contentDrift(t.Context(), ns, have, rules(t, nil), ref)
			if err != nil {
				t.Fatal(err)
			}
			return drift, false
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns, want := kerneltest.New(t), rules(t, nil)
			mustApply(t, newByPath(t), ns, want)
			ref, err := learn(t.Context(), want)
			if err != nil {
				t.Fatal(err)
			}
			have, err := readOutline(t.Context(), ns)
			if err != nil {
				t.Fatal(err)
			}
			conn, err := ns.Netlink(unix.NETLINK_NETFILTER)
			if err != nil {
				t.Fatal(err)
			}
			marked := kerneltest.InterruptDump(t, ns, conn.Fd(), unix.NETLINK_NETFILTER)
			if drift, foreign := read(t, ns, have, ref); len(drift) > 0 || foreign || !marked() {
				t.Errorf("drift %v, foreign %t, interrupted %t", drift, foreign, marked())
			}
		})
	}
}
