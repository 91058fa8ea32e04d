package redirection

import (
	"errors"
	"testing"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/test/kerneltest"
)

// Without rules a probe must not become a connection to somebody else: no TCP packet leaves the pod, not even for an address
// that only the rules make the pod's own, and not while the kernel has that but not yet its routes.
func TestWait_withoutRules_sendsNothingOut(t *testing.T) {
	pod, world := kerneltest.NewPod(t)
	// The world would answer for it.
	kerneltest.AddLocalRoute(t, world, "::6/128")
	kerneltest.Listen(t, world, kerneltest.App, "WORLD", validationPort)
	left := countLeaving(t, pod)
	expect := func(step string) {
		t.Helper()
		if _, err := try(t, pod); !errors.Is(err, ErrMissing) {
			t.Errorf("%s: %v", step, err)
		}
		if n := left(); n != 0 {
			t.Errorf("%s: %d packets left the pod", step, n)
		}
	}
	expect("without the address")
	kerneltest.AddAddresses(t, pod, "lo", "::6/128")
	expect("with the address")
	removeRoutes(t, pod, "::6/128")
	expect("with the address and without its routes")
	// A connection that is not kept on lo leaves, and is counted.
	if _, err := kerneltest.Dial(t.Context(), pod, kerneltest.App, kerneltest.Pod6, "[::6]:15005"); err != nil {
		t.Fatal(err)
	}
	if left() == 0 {
		t.Error("a connection that did leave was not counted")
	}
}

// countLeaving counts the TCP packets that leave a namespace from now on.
func countLeaving(t *testing.T, ns *netns.NS) func() uint64 {
	t.Helper()
	conn, err := nft.New(nft.WithNetNSFd(ns.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	table := conn.AddTable(&nft.Table{Family: nft.TableFamilyINet, Name: "watch"})
	chain := conn.AddChain(&nft.Chain{
		Table: table, Name: "leaving", Type: nft.ChainTypeFilter, Hooknum: nft.ChainHookPostrouting, Priority: nft.ChainPriorityFilter,
	})
	lo := [16]byte{'l', 'o'}
	conn.AddRule(&nft.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: lo[:]},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Counter{},
	}})
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return func() uint64 {
		t.Helper()
		rules, err := conn.GetRules(table, chain)
		if err != nil || len(rules) != 1 {
			t.Fatalf("%d rules, error %v", len(rules), err)
		}
		return rules[0].Exprs[len(rules[0].Exprs)-1].(*expr.Counter).Packets
	}
}

// removeRoutes takes away what the kernel makes for an address of lo, once it has made it.
func removeRoutes(t *testing.T, ns *netns.NS, dst string) {
	t.Helper()
	to, err := netlink.ParseIPNet(dst)
	if err != nil {
		t.Fatal(err)
	}
	for _, route := range []*netlink.Route{
		{LinkIndex: 1, Dst: to, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}, {LinkIndex: 1, Dst: to},
	} {
		kerneltest.Eventually(t, "the route is there: "+route.String(), func() bool {
			return ns.Inside(func() error { return netlink.RouteDel(route) }) == nil
		})
	}
}
