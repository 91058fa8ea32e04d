package main

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// oneRule redirects all TCP connections that pass a hook to a port, by the least that does: a table with a nat chain with a rule. It is what the
// rules are compared with.
func oneRule(ns *netns.NS, hook *nftables.ChainHook, port uint16) error {
	return transact(ns, func(c *nftables.Conn) {
		table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "one"})
		chain := c.AddChain(&nftables.Chain{Table: table, Name: "one", Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: nftables.ChainPriorityNATDest})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
			&expr.Immediate{Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
			&expr.Redir{RegisterProtoMin: 1, RegisterProtoMax: 1},
		}})
	})
}

// touch makes a table and deletes it: the rules are what they were, and the kernel counts a change.
func touch(ns *netns.NS) error {
	return transact(ns, func(c *nftables.Conn) {
		c.DelTable(c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "touch"}))
	})
}

// transact makes one transaction.
func transact(ns *netns.NS, fill func(c *nftables.Conn)) error {
	return ns.Inside(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		fill(c)
		return c.Flush()
	})
}

// fullSpec is a pod that asks for everything: TPROXY, DNS capture, 20 ports, 20 CIDRs of both families.
func fullSpec() iptables.Spec {
	s := excluding(20)
	s.Mode, s.DNS = iptables.ModeTProxy, iptables.DNSAll
	for i := range uint16(20) {
		s.ExcludeInboundPorts = append(s.ExcludeInboundPorts, 9000+i)
	}
	return s
}

// excluding returns a pod that excludes n CIDRs, alternately of IPv4 and IPv6. None overlaps another.
func excluding(n int) iptables.Spec {
	s := iptables.DefaultSpec()
	for i := range n {
		high, low := byte(i>>8), byte(i)
		a := netip.AddrFrom4([4]byte{10, high, low, 0})
		if i%2 == 1 {
			a = netip.AddrFrom16([16]byte{0xfd, 0, high, low})
		}
		s.ExcludeCIDRs = append(s.ExcludeCIDRs, netip.PrefixFrom(a, a.BitLen()*3/4))
	}
	return s
}
