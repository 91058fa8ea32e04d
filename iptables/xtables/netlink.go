package xtables

import (
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// These functions ask the kernel (linux/netfilter/nf_tables.h) which tables and chains of the nft flavour exist in the namespace of the
// calling thread, without a process. They ask by name: a pod may have made any number of others.

// kernelTimeout bounds an answer; the kernel answers in microseconds.
const kernelTimeout = lockSeconds * time.Second

// haveTable reports whether a family has any of the tables that our chains are in.
func haveTable(family uint32) (bool, error) {
	var requests []rawnetlink.Request
	for _, table := range ownTables() {
		requests = append(requests, nft(unix.NFT_MSG_GETTABLE, family, rawnetlink.Text(unix.NFTA_TABLE_NAME, table)))
	}
	return haveAny(requests)
}

// haveChain reports whether any chain of ours exists.
func haveChain() (bool, error) {
	var requests []rawnetlink.Request
	for family := range families() {
		for _, table := range ownTables() {
			for _, name := range iptables.RestoreChainNames() {
				requests = append(requests, nft(unix.NFT_MSG_GETCHAIN, family,
					rawnetlink.Text(unix.NFTA_CHAIN_TABLE, table), rawnetlink.Text(unix.NFTA_CHAIN_NAME, name)))
			}
		}
	}
	return haveAny(requests)
}

// haveAny reports whether any requested object exists. Without nf_tables in the kernel there is none.
func haveAny(requests []rawnetlink.Request) (bool, error) {
	answers, err := rawnetlink.Ask(time.Now().Add(kernelTimeout), unix.NETLINK_NETFILTER, requests...)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return false, nil
	}
	return slices.ContainsFunc(answers, func(a rawnetlink.Answer) bool { return a.Err == nil }), err
}

func nft(kind uint16, family uint32, attributes ...[]byte) rawnetlink.Request {
	return rawnetlink.Request{
		Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, Header: []byte{byte(family), unix.NFNETLINK_V0, 0, 0}, Attributes: attributes,
	}
}
