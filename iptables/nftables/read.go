package nftables

import (
	"fmt"
	"slices"
	"strings"

	nft "github.com/google/nftables"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// lookUp gives our table with the names of what it holds.
func lookUp(conn *nft.Conn) (kernelTable, error) {
	table, err := ownTable(conn)
	if err != nil || table == nil {
		return kernelTable{}, err
	}
	k := kernelTable{table: table}
	if k.sets, err = conn.GetSets(table); err != nil {
		return k, fmt.Errorf("list sets: %w", err)
	}
	chains, err := conn.ListChainsOfTableFamily(nft.TableFamilyINet)
	if err != nil {
		return k, fmt.Errorf("list chains: %w", err)
	}
	k.chains = slices.DeleteFunc(chains, func(c *nft.Chain) bool { return c.Table.Name != iptables.TableName })
	return k, nil
}

// read gives what our table holds, sets by name, chains and rules in the kernel's order; what somebody else has put into it
// comes back as a rule, set or chain that differs from all of ours.
func (k kernelTable) read(ns *netns.NS, conn *nft.Conn) (iptables.Ruleset, error) {
	var out iptables.Ruleset
	if k.table == nil || k.table.Flags&nft.TableFlagDormant != 0 { // a dormant table holds rules that do nothing
		return out, nil
	}
	for _, s := range k.sets {
		set, err := readSet(conn, s)
		if err != nil {
			return out, err
		}
		out.Sets = append(out.Sets, set)
	}
	slices.SortFunc(out.Sets, func(a, b iptables.Set) int { return strings.Compare(a.Name, b.Name) })
	rules, err := dumpRules(ns)
	if err != nil {
		return out, err
	}
	for _, c := range k.chains {
		out.Chains = append(out.Chains, chainOf(c, rules))
	}
	return iptables.Ordered(out), nil
}

// ownTable gives our table, or nil where there is none.
func ownTable(conn *nft.Conn) (*nft.Table, error) {
	tables, err := conn.ListTablesOfFamily(nft.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	for _, t := range tables {
		if t.Name == iptables.TableName {
			return t, nil
		}
	}
	return nil, nil
}

func readSet(conn *nft.Conn, s *nft.Set) (iptables.Set, error) {
	elements, err := conn.GetSetElements(s)
	if err != nil {
		return iptables.Set{}, fmt.Errorf("list elements of set %s: %w", s.Name, err)
	}
	set := decodeSet(s, elements)
	slices.Sort(set.Ports)
	return set, nil
}

// chainOf puts a chain together with its rules.
func chainOf(c *nft.Chain, rules []dumpedRule) iptables.Chain {
	out := iptables.Chain{Name: c.Name, Type: iptables.ChainType(c.Type), Hook: "none"}
	if c.Hooknum != nil && c.Priority != nil {
		out.Hook, out.Priority = iptables.Output, int32(*c.Priority)
		if *c.Hooknum == *nft.ChainHookPrerouting {
			out.Hook = iptables.Prerouting
		}
	}
	for _, r := range rules {
		if r.chain == c.Name {
			out.Rules = append(out.Rules, decode(r))
		}
	}
	return out
}
