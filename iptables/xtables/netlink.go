package xtables

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// These functions ask the kernel (linux/netfilter/nf_tables.h) about tables and chains of the nft flavour in the namespace of the calling
// thread, without a process. They ask by name: a pod may have made any number of other chains.

const (
	// kernelTimeout bounds an answer; the kernel answers in microseconds.
	kernelTimeout = lockSeconds * time.Second
	// maxJumps bounds the rules of a built-in chain that are searched for our jump, which stands at its head.
	maxJumps = 4096
	// attempts bounds the tries of a removal beside other changes of the rules.
	attempts = 5
)

// nftTable is an existing table that our chains may be in.
type nftTable struct {
	family uint32
	name   string
	owned  bool // by a process of the pod
	chains []nftChain
}

// nftChain is an existing chain of ours. used is the number of its rules and of jumps to it.
type nftChain struct {
	name string
	used uint32
}

// readTables returns the existing tables of families that our chains may be in.
func readTables(families ...uint32) (found []nftTable, err error) {
	var all []nftTable
	var requests []rawnetlink.Request
	for _, family := range families {
		for _, name := range ownTables() {
			all = append(all, nftTable{family: family, name: name})
			requests = append(requests, nft(unix.NFT_MSG_GETTABLE, family, rawnetlink.Text(unix.NFTA_TABLE_NAME, name)))
		}
	}
	err = existing(requests, func(i int, attributes map[uint16][]byte) {
		all[i].owned = rawnetlink.BigEndian(attributes[unix.NFTA_TABLE_FLAGS])&rawnetlink.TableOwner != 0
		found = append(found, all[i])
	})
	return found, err
}

// haveTable reports whether a family has any of the tables that our chains are in.
func haveTable(family uint32) (bool, error) {
	found, err := readTables(family)
	for _, t := range found {
		if t.owned {
			return false, fmt.Errorf("%w: a process of the pod owns table %s, and no other process can change it", ErrUnusable, t.name)
		}
	}
	return len(found) > 0, err
}

// readChains returns the tables with chains of ours. A table that a process of the pod owns has none: nobody else could have made them.
func readChains() (found []nftTable, err error) {
	tables, err := readTables(iptables.IPv4, iptables.IPv6)
	if err != nil {
		return nil, err
	}
	names := iptables.RestoreChainNames()
	for _, t := range tables {
		var requests []rawnetlink.Request
		for _, name := range names {
			requests = append(requests, t.request(unix.NFT_MSG_GETCHAIN, rawnetlink.Text(unix.NFTA_CHAIN_NAME, name)))
		}
		err := existing(requests, func(i int, attributes map[uint16][]byte) {
			t.chains = append(t.chains, nftChain{names[i], rawnetlink.BigEndian(attributes[unix.NFTA_CHAIN_USE])})
		})
		if err != nil {
			return nil, err
		}
		if len(t.chains) > 0 && !t.owned {
			found = append(found, t)
		}
	}
	return found, nil
}

// removals returns what takes our chains and jumps away, whether the programs can read them or not. The jumps and all rules in our chains go in one
// transaction a table; a chain that foreign rules jump to stays, empty, and then counts as foreign.
func removals() (all [][]rawnetlink.Request, err error) {
	tables, err := readChains()
	for _, t := range tables {
		jumps, errJumps := t.ownJumps()
		rules, chains := jumps, [][]rawnetlink.Request(nil)
		for _, c := range t.chains {
			name := rawnetlink.Text(unix.NFTA_RULE_CHAIN, c.name)
			has, errHas := t.hasRule(name)
			err = errors.Join(err, errHas)
			if has {
				rules = append(rules, t.request(unix.NFT_MSG_DELRULE, name))
			}
			if has || c.used == 0 || len(jumps) > 0 {
				chains = append(chains, []rawnetlink.Request{t.request(unix.NFT_MSG_DELCHAIN, rawnetlink.Text(unix.NFTA_CHAIN_NAME, c.name))})
			}
		}
		if err = errors.Join(err, errJumps); err != nil {
			return nil, err
		}
		if len(rules) > 0 {
			all = append(all, rules)
		}
		all = append(all, chains...)
	}
	return all, err
}

// remove carries out removals. It looks again if a rule or chain has gone meanwhile, for which the kernel refuses a whole transaction.
func remove(all [][]rawnetlink.Request) (err error) {
	for range attempts {
		if err = removeOnce(all); !errors.Is(err, unix.ENOENT) {
			return err
		}
		var errLook error
		if all, errLook = removals(); errLook != nil {
			return errLook
		}
	}
	return err
}

func removeOnce(all [][]rawnetlink.Request) error {
	for _, transaction := range all {
		answers, err := rawnetlink.Ask(time.Now().Add(kernelTimeout), unix.NETLINK_NETFILTER, rawnetlink.Batch(transaction)...)
		for _, a := range answers {
			err = errors.Join(err, a.Err)
		}
		if err != nil && !errors.Is(err, unix.EBUSY) { // EBUSY: foreign rules jump to the chain
			return fmt.Errorf("remove our chains over netlink: %w", err)
		}
	}
	return nil
}

// ownJumps returns what deletes the jumps to our chains, which have our comment.
func (t nftTable) ownJumps() (found []rawnetlink.Request, err error) {
	for _, hook := range hooks() {
		chain := rawnetlink.Text(unix.NFTA_RULE_CHAIN, hook)
		read := 0
		err = errors.Join(err, t.dump(chain, func(rule []byte) bool {
			ours := slices.ContainsFunc(t.chains, func(c nftChain) bool {
				return bytes.Contains(rule, rawnetlink.Text(unix.NFTA_VERDICT_CHAIN, c.name)) && bytes.Contains(rule, []byte(iptables.TableName))
			})
			if ours {
				handle := rawnetlink.Attributes(rule)[unix.NFTA_RULE_HANDLE]
				found = append(found, t.request(unix.NFT_MSG_DELRULE, chain, rawnetlink.Bytes(unix.NFTA_RULE_HANDLE, handle)))
			}
			read++
			return read < maxJumps
		}))
	}
	return found, err
}

func (t nftTable) hasRule(chain []byte) (has bool, err error) {
	err = t.dump(chain, func([]byte) bool { has = true; return false })
	return has, err
}

// dump calls visit with the attributes of the rules of a chain, as long as it returns true.
func (t nftTable) dump(chain []byte, visit func([]byte) bool) error {
	conn, err := rawnetlink.Open(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer conn.Close()
	err = conn.Dump(time.Now().Add(kernelTimeout), t.request(unix.NFT_MSG_GETRULE, chain), func(body []byte) bool {
		return visit(rawnetlink.Object(body))
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// existing asks for objects by name, and calls found with the attributes of each existing object. Without nf_tables in the kernel there is
// none.
func existing(requests []rawnetlink.Request, found func(i int, attributes map[uint16][]byte)) error {
	answers, err := rawnetlink.Ask(time.Now().Add(kernelTimeout), unix.NETLINK_NETFILTER, requests...)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil
	}
	for i, a := range answers {
		if object := a.Object(); object != nil {
			found(i, object)
		}
	}
	return err
}

// request is about an object of the table, whose name is attribute 1 of every kind of object.
func (t nftTable) request(kind uint16, attributes ...[]byte) rawnetlink.Request {
	return nft(kind, t.family, slices.Insert(attributes, 0, rawnetlink.Text(unix.NFTA_TABLE_NAME, t.name))...)
}

func nft(kind uint16, family uint32, attributes ...[]byte) rawnetlink.Request {
	r := rawnetlink.Nftables(kind, byte(family), attributes...)
	r.Silent = kind == unix.NFT_MSG_DELRULE || kind == unix.NFT_MSG_DELCHAIN
	return r
}
