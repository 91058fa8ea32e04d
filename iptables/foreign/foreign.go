// Package foreign finds foreign chains in a network namespace: known projects by the names of their chains, and any chain that sees
// packets before ours. A look is bounded whatever a pod has written, and makes no table.
package foreign

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/rawnetlink"
)

// maxRules is how many rules of a built-in chain are read: a hundred times what any project writes.
const maxRules = 4096

// limit bounds a look; the caller's context may be shorter. The kernel answers in microseconds.
const limit = 2 * time.Second

// chain is a chain by which another project is recognised, and its table in iptables.
type chain struct{ owner, table, name string }

// chains returns the chains that each project makes in every pod, in all versions that are in use.
func chains() []chain {
	return []chain{
		{"Istio", "nat", "ISTIO_OUTPUT"},
		{"Istio", "nat", "ISTIO_INBOUND"},
		{"Istio", "mangle", "ISTIO_INBOUND"},
		{"Istio", "nat", "ISTIO_PRERT"}, // ambient
		{"linkerd", "nat", "PROXY_INIT_OUTPUT"},
		{"linkerd", "nat", "PROXY_INIT_REDIRECT"},
		{"Kuma", "nat", "KUMA_MESH_OUTBOUND"},
		{"Kuma", "nat", "KUMA_MESH_INBOUND"},
		{"Consul", "nat", "CONSUL_PROXY_OUTPUT"},
		{"Consul", "nat", "CONSUL_PROXY_INBOUND"},
		{"Consul", "nat", "CONSUL_DNS_REDIRECT"},
	}
}

// nativeTables returns the nftables tables that projects make for themselves.
func nativeTables() []chain {
	return []chain{
		{owner: "Istio", table: "istio-proxy-nat"},
		{owner: "Istio", table: "istio-proxy-mangle"},
		{owner: "Istio", table: "istio-proxy-raw"},
		{owner: "Istio", table: "istio-ambient-nat"},
		{owner: "Istio", table: "istio-ambient-mangle"},
		{owner: "Consul", table: "consul_tproxy"},
	}
}

// family is a family of nf_tables.
type family struct {
	number byte
	name   string
}

func families() []family {
	return []family{{unix.NFPROTO_INET, "inet"}, {unix.NFPROTO_IPV4, "ip"}, {unix.NFPROTO_IPV6, "ip6"}}
}

// Find looks for the rules of other projects in a namespace, and returns nil if there are none. A chain that no packet reaches does
// not count: a chain of iptables needs a jump from PREROUTING or OUTPUT, where every project puts it. What the rules in the chain do
// is not looked at.
func Find(ctx context.Context, ns *netns.NS) (found *podnet.ProgrammedByOthersError, err error) {
	if err = ctx.Err(); err == nil {
		err = ns.Inside(func() error {
			if found, err = (native{ns: ns, end: endOf(ctx)}).find(); err != nil || found != nil {
				return err
			}
			found = findLegacy()
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("look for the rules of other projects: %w", err)
	}
	return found, nil
}

// endOf returns when a look has to end: by the deadline of ctx, and by limit.
func endOf(ctx context.Context) time.Time {
	end := time.Now().Add(limit)
	if asked, ok := ctx.Deadline(); ok && asked.Before(end) {
		end = asked
	}
	return end
}

// native asks the nf_tables of a namespace, which also hold the rules of iptables' nft flavour. It is for a thread inside it.
type native struct {
	ns  *netns.NS
	end time.Time
}

// candidate is a chain, or a table, that may exist in a family.
type candidate struct {
	chain
	family family
}

// find asks first for tables, then for chains in the existing ones: in most pods there are none, and questions about chains would be most of the time.
func (n native) find() (*podnet.ProgrammedByOthersError, error) {
	var tables, named []candidate
	for _, c := range nativeTables() {
		tables = append(tables, candidate{c, families()[0]})
	}
	for _, f := range families() {
		tables = append(tables, candidate{chain{table: "nat"}, f}, candidate{chain{table: "mangle"}, f})
	}
	tables, err := n.inUse(tables)
	if err != nil {
		return nil, err
	}
	for _, t := range tables {
		if t.owner != "" {
			return &podnet.ProgrammedByOthersError{Owner: t.owner, Found: fmt.Sprintf("nftables table %s %s", t.family.name, t.table)}, nil
		}
		for _, c := range chains() {
			if c.table == t.table {
				named = append(named, candidate{c, t.family})
			}
		}
	}
	named, err = n.inUse(named)
	for _, c := range named {
		if reached, err := n.hooked(c.family, c.chain); err != nil {
			return nil, err
		} else if reached {
			return &podnet.ProgrammedByOthersError{Owner: c.owner, Found: fmt.Sprintf("chain %s in table %s %s", c.name, c.family.name, c.table)}, nil
		}
	}
	return nil, err
}

// inUse returns the candidates that exist and hold anything.
func (n native) inUse(all []candidate) (found []candidate, err error) {
	if len(all) == 0 {
		return nil, nil
	}
	var requests []rawnetlink.Request
	for _, c := range all {
		if c.name == "" {
			requests = append(requests, get(unix.NFT_MSG_GETTABLE, c.family, rawnetlink.Text(unix.NFTA_TABLE_NAME, c.table)))
		} else {
			requests = append(requests, get(unix.NFT_MSG_GETCHAIN, c.family, rawnetlink.Text(unix.NFTA_CHAIN_TABLE, c.table), rawnetlink.Text(unix.NFTA_CHAIN_NAME, c.name)))
		}
	}
	answers, err := n.ask(requests...)
	for i, a := range answers {
		use := uint16(unix.NFTA_CHAIN_USE)
		if all[i].name == "" {
			use = unix.NFTA_TABLE_USE
		}
		if rawnetlink.BigEndian(a.Object()[use]) > 0 {
			found = append(found, all[i])
		}
	}
	return found, err
}

// hooked reports whether packets reach a chain that is in use, by a jump from a built-in chain of iptables. With more rules there than are
// read, it counts as reached. So does any chain of family inet, which iptables does not use: base chains there have any name.
func (n native) hooked(p family, c chain) (reached bool, err error) {
	if p.number == unix.NFPROTO_INET {
		return true, nil
	}
	conn, err := n.ns.Netlink(unix.NETLINK_NETFILTER)
	if err != nil {
		return false, err
	}
	verdict := rawnetlink.Text(unix.NFTA_VERDICT_CHAIN, c.name)
	for _, base := range []string{hookName(hookPrerouting), hookName(hookOutput)} {
		request := get(unix.NFT_MSG_GETRULE, p, rawnetlink.Text(unix.NFTA_RULE_TABLE, c.table), rawnetlink.Text(unix.NFTA_RULE_CHAIN, base))
		err := rawnetlink.Uninterrupted(func() error {
			read := 0
			return conn.Dump(n.end, request, func(body []byte) bool {
				read++
				reached = reached || read > maxRules || bytes.Contains(body, verdict)
				return !reached
			})
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return false, err
		}
	}
	return reached, nil
}

func get(kind uint16, p family, attributes ...[]byte) rawnetlink.Request {
	return rawnetlink.Nftables(kind, p.number, attributes...)
}

// ask returns no answers if the kernel has no nf_tables.
func (n native) ask(requests ...rawnetlink.Request) ([]rawnetlink.Answer, error) {
	conn, err := n.ns.Netlink(unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return conn.Ask(n.end, requests...)
}
