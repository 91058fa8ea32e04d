// Package foreign finds foreign chains in a network namespace: known projects by the names of their chains, and any chain that sees
// packets before ours. A look is bounded whatever a pod has written, and makes no table.
package foreign

import (
	"bytes"
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/rawnetlink"
)

// maxRules is how many rules of a built-in chain are read: a hundred times what any project writes.
const maxRules = 4096

// chain is a chain by which another project is recognised, and its table in iptables. Without a name it is a table of nftables that the project
// makes for itself.
type chain struct{ owner, table, name string }

// chains returns the chains and tables that each project makes in every pod, in all versions that are in use.
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
		{owner: "Istio", table: "istio-proxy-nat"},
		{owner: "Istio", table: "istio-proxy-mangle"},
		{owner: "Istio", table: "istio-proxy-raw"},
		{owner: "Istio", table: "istio-ambient-nat"},
		{owner: "Istio", table: "istio-ambient-mangle"},
		{owner: "Consul", table: "consul_tproxy"},
	}
}

// Find looks for the rules of other projects in a namespace, and returns nil if there are none. A chain that no packet reaches does
// not count: a chain of iptables needs a jump from PREROUTING or OUTPUT, where every project puts it. What the rules in the chain do
// is not looked at.
func Find(ctx context.Context, ns *netns.NS) (found *podnet.ProgrammedByOthersError, err error) {
	if err = ctx.Err(); err == nil {
		err = ns.Inside(func() error {
			if found, err = nativeOf(ctx, ns).find(); err != nil || found != nil {
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

// candidate is a chain, or a table, that may exist in a family.
type candidate struct {
	chain
	family byte
}

// find asks first for tables, then for chains in the existing ones: in most pods there are none, and questions about chains would be most of the time.
func (n native) find() (*podnet.ProgrammedByOthersError, error) {
	var tables, named []candidate
	for _, c := range chains() {
		if c.name == "" {
			tables = append(tables, candidate{c, unix.NFPROTO_INET})
		}
	}
	for _, family := range []byte{unix.NFPROTO_INET, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		tables = append(tables, candidate{chain{table: "nat"}, family}, candidate{chain{table: "mangle"}, family})
	}
	tables, err := n.inUse(tables)
	if err != nil {
		return nil, err
	}
	for _, t := range tables {
		if t.owner != "" {
			return &podnet.ProgrammedByOthersError{Owner: t.owner, Found: "nftables table " + placeOf(t.family, t.table)}, nil
		}
		for _, c := range chains() {
			if c.table == t.table && c.name != "" {
				named = append(named, candidate{c, t.family})
			}
		}
	}
	named, err = n.inUse(named)
	for _, c := range named {
		if reached, err := n.hooked(c); err != nil {
			return nil, err
		} else if reached {
			return &podnet.ProgrammedByOthersError{Owner: c.owner, Found: fmt.Sprintf("chain %s in table %s", c.name, placeOf(c.family, c.table))}, nil
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
		kind, attributes := uint16(unix.NFT_MSG_GETTABLE), [][]byte{rawnetlink.Text(unix.NFTA_TABLE_NAME, c.table)} // NFTA_CHAIN_TABLE is the same
		if c.name != "" {
			kind, attributes = unix.NFT_MSG_GETCHAIN, append(attributes, rawnetlink.Text(unix.NFTA_CHAIN_NAME, c.name))
		}
		requests = append(requests, rawnetlink.Nftables(kind, c.family, attributes...))
	}
	answers, err := n.ask(requests...)
	for i, a := range answers {
		use := uint16(unix.NFTA_CHAIN_USE)
		if all[i].name == "" {
			use = unix.NFTA_TABLE_USE
		}
		if number(a.Object()[use]) > 0 {
			found = append(found, all[i])
		}
	}
	return found, err
}

// hooked reports whether packets reach a chain that is in use, by a jump from a built-in chain of iptables. With more rules there than are
// read, it counts as reached. So does any chain of family inet, which iptables does not use: base chains there have any name.
func (n native) hooked(c candidate) (reached bool, err error) {
	if c.family == unix.NFPROTO_INET {
		return true, nil
	}
	verdict := rawnetlink.Text(unix.NFTA_VERDICT_CHAIN, c.name)
	for _, hook := range []uint32{hookPrerouting, hookOutput} {
		err := rawnetlink.Uninterrupted(func() error {
			read := 0
			return n.rules(c.family, c.table, hookName(hook), func(rule nftRule) bool {
				read++
				reached = reached || read > maxRules || bytes.Contains(rule.expressions, verdict)
				return !reached
			})
		})
		if err != nil {
			return false, err
		}
	}
	return reached, nil
}
