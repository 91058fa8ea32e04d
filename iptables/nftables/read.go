package nftables

import (
	"fmt"
	"slices"
	"strings"

	nft "github.com/google/nftables"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// read gives what a table of ours holds, sets by name, chains and rules in the kernel's order. No table is an empty Ruleset;
// what somebody else has put into our table comes back as a rule, set or chain that differs from all of ours.
func read(ns *netns.NS, conn *nft.Conn, table *nft.Table) (iptables.Ruleset, error) {
	var out iptables.Ruleset
	if table == nil || table.Flags&nft.TableFlagDormant != 0 { // a dormant table holds rules that do nothing
		return out, nil
	}
	sets, err := conn.GetSets(table)
	if err != nil {
		return out, fmt.Errorf("list sets: %w", err)
	}
	for _, s := range sets {
		set, err := readSet(conn, s)
		if err != nil {
			return out, err
		}
		out.Sets = append(out.Sets, set)
	}
	slices.SortFunc(out.Sets, func(a, b iptables.Set) int { return strings.Compare(a.Name, b.Name) })
	chains, err := conn.ListChainsOfTableFamily(nft.TableFamilyINet)
	if err != nil {
		return out, fmt.Errorf("list chains: %w", err)
	}
	rules, err := dumpRules(ns)
	if err != nil {
		return out, err
	}
	for _, c := range chains {
		if c.Table.Name == iptables.TableName {
			out.Chains = append(out.Chains, chainOf(c, rules))
		}
	}
	return out, nil
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
