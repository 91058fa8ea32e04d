package main

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
)

// The reference for the rules: the least that redirects a pod's TCP traffic of one direction. One transaction makes a table with one nat
// chain with one rule.

// natPriority is the usual priority of a nat chain that redirects (NF_IP_PRI_NAT_DST, -100).
const natPriority = ^uint32(99)

// oneRule redirects all TCP connections that pass a hook (unix.NF_INET_...) to a port.
func oneRule(ns *netns.NS, hook uint32, port uint16) error {
	rule, err := redirectTCP(port)
	if err != nil {
		return err
	}
	const table, chain = "one", "one"
	return commit(ns,
		message(unix.NFT_MSG_NEWTABLE, rawnetlink.Text(unix.NFTA_TABLE_NAME, table)),
		message(unix.NFT_MSG_NEWCHAIN, rawnetlink.Text(unix.NFTA_CHAIN_TABLE, table), rawnetlink.Text(unix.NFTA_CHAIN_NAME, chain),
			rawnetlink.Text(unix.NFTA_CHAIN_TYPE, "nat"),
			nest(unix.NFTA_CHAIN_HOOK, number(unix.NFTA_HOOK_HOOKNUM, hook), number(unix.NFTA_HOOK_PRIORITY, natPriority))),
		message(unix.NFT_MSG_NEWRULE, rawnetlink.Text(unix.NFTA_RULE_TABLE, table), rawnetlink.Text(unix.NFTA_RULE_CHAIN, chain), rule))
}

// touch makes a table and deletes it: the rules are what they were, and the kernel counts a change.
func touch(ns *netns.NS) error {
	name := rawnetlink.Text(unix.NFTA_TABLE_NAME, "touch")
	return commit(ns, message(unix.NFT_MSG_NEWTABLE, name), message(unix.NFT_MSG_DELTABLE, name))
}

// commit makes one transaction of messages.
func commit(ns *netns.NS, messages ...rawnetlink.Request) error {
	edge := func(kind uint16) rawnetlink.Request {
		return rawnetlink.Request{Kind: kind, Header: binary.BigEndian.AppendUint16([]byte{0, unix.NFNETLINK_V0}, unix.NFNL_SUBSYS_NFTABLES), Silent: true}
	}
	last := &messages[len(messages)-1] // all are answered together
	last.Silent, last.Flags = false, last.Flags|unix.NLM_F_ACK
	return ns.Inside(func() error {
		answers, err := rawnetlink.Ask(time.Now().Add(5*time.Second), unix.NETLINK_NETFILTER,
			slices.Concat([]rawnetlink.Request{edge(unix.NFNL_MSG_BATCH_BEGIN)}, messages, []rawnetlink.Request{edge(unix.NFNL_MSG_BATCH_END)})...)
		for _, a := range answers {
			err = errors.Join(err, a.Err)
		}
		return err
	})
}

// redirectTCP is `meta l4proto tcp redirect to :PORT` as the attribute of a rule.
func redirectTCP(port uint16) ([]byte, error) {
	var list [][]byte
	for _, e := range []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Immediate{Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
		&expr.Redir{RegisterProtoMin: 1, RegisterProtoMax: 1},
	} {
		data, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil {
			return nil, err
		}
		list = append(list, nest(unix.NFTA_LIST_ELEM, data))
	}
	return nest(unix.NFTA_RULE_EXPRESSIONS, list...), nil
}

func message(kind uint16, attributes ...[]byte) rawnetlink.Request {
	r := rawnetlink.Nftables(kind, unix.NFPROTO_INET, attributes...)
	r.Flags, r.Silent = unix.NLM_F_CREATE, true
	return r
}

func number(kind uint16, n uint32) []byte {
	return rawnetlink.Bytes(kind, binary.BigEndian.AppendUint32(nil, n))
}

func nest(kind uint16, attributes ...[]byte) []byte {
	return rawnetlink.Bytes(kind|unix.NLA_F_NESTED, slices.Concat(attributes...))
}
