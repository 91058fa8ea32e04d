package main

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// natPriority is the usual priority of a nat chain that redirects (NF_IP_PRI_NAT_DST, -100).
const natPriority = ^uint32(99)

// oneRule redirects all TCP connections that pass a hook (unix.NF_INET_...) to a port, by the least that does: one transaction that makes a table with a
// nat chain with a rule. It is what the rules are compared with.
func oneRule(ns *netns.NS, hook uint32, port uint16) error {
	var list [][]byte
	for _, e := range []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Immediate{Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
		&expr.Redir{RegisterProtoMin: 1, RegisterProtoMax: 1},
	} {
		data, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil {
			return err
		}
		list = append(list, nest(unix.NFTA_LIST_ELEM, data))
	}
	const one = "one"
	number := func(kind uint16, n uint32) []byte {
		return rawnetlink.Bytes(kind, binary.BigEndian.AppendUint32(nil, n))
	}
	return transact(ns,
		rawnetlink.Nftables(unix.NFT_MSG_NEWTABLE, unix.NFPROTO_INET, rawnetlink.Text(unix.NFTA_TABLE_NAME, one)),
		rawnetlink.Nftables(unix.NFT_MSG_NEWCHAIN, unix.NFPROTO_INET, rawnetlink.Text(unix.NFTA_CHAIN_TABLE, one), rawnetlink.Text(unix.NFTA_CHAIN_NAME, one),
			rawnetlink.Text(unix.NFTA_CHAIN_TYPE, "nat"),
			nest(unix.NFTA_CHAIN_HOOK, number(unix.NFTA_HOOK_HOOKNUM, hook), number(unix.NFTA_HOOK_PRIORITY, natPriority))),
		rawnetlink.Nftables(unix.NFT_MSG_NEWRULE, unix.NFPROTO_INET, rawnetlink.Text(unix.NFTA_RULE_TABLE, one), rawnetlink.Text(unix.NFTA_RULE_CHAIN, one),
			nest(unix.NFTA_RULE_EXPRESSIONS, list...)))
}

func nest(kind uint16, attributes ...[]byte) []byte {
	return rawnetlink.Bytes(kind|unix.NLA_F_NESTED, slices.Concat(attributes...))
}

// touch makes a table and deletes it: the rules are what they were, and the kernel counts a change.
func touch(ns *netns.NS) error {
	name := rawnetlink.Text(unix.NFTA_TABLE_NAME, "touch")
	return transact(ns, rawnetlink.Nftables(unix.NFT_MSG_NEWTABLE, unix.NFPROTO_INET, name), rawnetlink.Nftables(unix.NFT_MSG_DELTABLE, unix.NFPROTO_INET, name))
}

// transact makes one transaction of messages, which are answered together.
func transact(ns *netns.NS, messages ...rawnetlink.Request) error {
	for i := range messages {
		messages[i].Flags, messages[i].Silent = unix.NLM_F_CREATE, true
	}
	return ns.Inside(func() error {
		answers, err := rawnetlink.Ask(time.Now().Add(5*time.Second), unix.NETLINK_NETFILTER, rawnetlink.Batch(messages)...)
		for _, a := range answers {
			err = errors.Join(err, a.Err)
		}
		return err
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
