package xtables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
)

// These functions ask the kernel (linux/netfilter/nf_tables.h) for what the programs of the nft flavour cannot do, or only with a
// process: which chains exist, and the deletion of an empty table. Tables and chains are asked for by name: a pod may have made any
// number of others.

const (
	sizeofNfgenmsg = 4
	policyAccept   = 1 // NF_ACCEPT
	// kernelTimeout bounds an answer; the kernel answers in microseconds.
	kernelTimeout = lockSeconds * time.Second
)

// kernelChain is a chain of nf_tables. policy is a base chain's, and -1 for other chains.
type kernelChain struct {
	name   string
	policy int
}

// haveTable reports whether a family has any of some tables, in the namespace of the calling thread.
func haveTable(family uint32, names ...string) (bool, error) {
	var requests []rawnetlink.Request
	for _, name := range names {
		requests = append(requests, nft(unix.NFT_MSG_GETTABLE, family, rawnetlink.Text(unix.NFTA_TABLE_NAME, name)))
	}
	answers, err := ask(requests...)
	return slices.ContainsFunc(answers, func(a rawnetlink.Answer) bool { return a.Err == nil }), err
}

// kernelChains returns which of some chains a table has, in the namespace of the calling thread.
func kernelChains(family uint32, table string, names ...string) (found []kernelChain, err error) {
	var requests []rawnetlink.Request
	for _, name := range names {
		requests = append(requests, nft(unix.NFT_MSG_GETCHAIN, family,
			rawnetlink.Text(unix.NFTA_CHAIN_TABLE, table), rawnetlink.Text(unix.NFTA_CHAIN_NAME, name)))
	}
	answers, err := ask(requests...)
	for i, a := range answers {
		if a.Err != nil || len(a.Body) < sizeofNfgenmsg {
			continue
		}
		c := kernelChain{name: names[i], policy: -1}
		if p := rawnetlink.Attributes(a.Body[sizeofNfgenmsg:])[unix.NFTA_CHAIN_POLICY]; len(p) == 4 {
			c.policy = int(binary.BigEndian.Uint32(p))
		}
		found = append(found, c)
	}
	return found, err
}

// builtInChains returns all chains that iptables itself makes.
func builtInChains() []string {
	return []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
}

// dropTables deletes those of our tables that hold only built-in chains with policy ACCEPT. From the others it removes the chain that
// marks them as ours. The kernel refuses to delete a chain with rules and a table with chains, so what somebody adds at the same
// time stays.
func dropTables(family uint32, tables []string) error {
	for _, name := range tables {
		own, err := kernelChains(family, name, append(builtInChains(), madeTable)...)
		if err != nil {
			return err
		}
		err = unix.EBUSY
		if !slices.ContainsFunc(own, func(c kernelChain) bool { return c.policy != policyAccept && c.name != madeTable }) {
			err = drop(family, name, own, true)
		}
		if errors.Is(err, unix.EBUSY) {
			err = drop(family, name, []kernelChain{{name: madeTable}}, false)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete empty table %s: %w", name, err)
		}
	}
	return nil
}

// drop deletes empty chains of a table in one transaction, and with whole the table too.
func drop(family uint32, table string, chains []kernelChain, whole bool) error {
	edge := func(kind uint16) rawnetlink.Request {
		return rawnetlink.Request{Kind: kind, Header: binary.BigEndian.AppendUint16([]byte{0, unix.NFNETLINK_V0}, unix.NFNL_SUBSYS_NFTABLES), Silent: true}
	}
	requests := []rawnetlink.Request{edge(unix.NFNL_MSG_BATCH_BEGIN)}
	del := func(kind uint16, attributes ...[]byte) {
		r := nft(kind, family, attributes...)
		r.Flags = unix.NLM_F_ACK | unix.NLM_F_NONREC
		requests = append(requests, r)
	}
	for _, c := range chains {
		del(unix.NFT_MSG_DELCHAIN, rawnetlink.Text(unix.NFTA_CHAIN_TABLE, table), rawnetlink.Text(unix.NFTA_CHAIN_NAME, c.name))
	}
	if whole {
		del(unix.NFT_MSG_DELTABLE, rawnetlink.Text(unix.NFTA_TABLE_NAME, table))
	}
	answers, err := ask(append(requests, edge(unix.NFNL_MSG_BATCH_END))...)
	for _, a := range answers {
		if err == nil {
			err = a.Err
		}
	}
	return err
}

// ask returns no answers if the kernel has no nf_tables.
func ask(requests ...rawnetlink.Request) ([]rawnetlink.Answer, error) {
	answers, err := rawnetlink.Ask(time.Now().Add(kernelTimeout), unix.NETLINK_NETFILTER, requests...)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil
	}
	return answers, err
}

func nft(kind uint16, family uint32, attributes ...[]byte) rawnetlink.Request {
	return rawnetlink.Request{
		Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, Header: []byte{byte(family), unix.NFNETLINK_V0, 0, 0}, Attributes: attributes, //nolint:gosec // NFPROTO numbers are small
	}
}
