package nftables

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	nft "github.com/google/nftables"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// kernelTable is our table as the kernel has it: nil where there is none.
type kernelTable struct {
	table  *nft.Table
	chains []*nft.Chain
	sets   []*nft.Set
}

// commit makes our table hold exactly want.
//
// A fresh namespace gets everything in one transaction. It is spared every deletion: closing a socket after one waits until
// no packet uses what is gone, which takes milliseconds.
//
// A table of the shape that we make is changed in steps, each with a socket of its own, whose closing is that wait. For a
// transaction is atomic for each chain and set by itself, but a packet looks for the current generation each time that it
// comes to one. So chains are refilled, never made anew beside the old one: a packet could find the new one still empty and,
// a moment later, the old one empty already. What captures a connection from now on is there before what has captured it
// up to now goes. And sets come before all rules that use them and go after them, since a rule and its set do not change at
// the same instant either.
//
// Any other table, which somebody else has worked on, is deleted and made anew.
func commit(ns *netns.NS, conn *nft.Conn, old kernelTable, want iptables.Ruleset) error {
	b := batch{table: &nft.Table{Family: nft.TableFamilyINet, Name: iptables.TableName}, suffix: nextSuffix(old.sets)}
	if old.table == nil || !old.shapedLike(want) {
		if old.table != nil {
			conn.DelTable(old.table)
		}
		conn.CreateTable(b.table)
		return b.flush(conn, want.Chains, nil, want.Sets)
	}
	first, second := stages(want)
	gone := old.without(want)
	steps := []func(*nft.Conn) error{
		func(c *nft.Conn) error { return b.flush(c, nil, nil, want.Sets) },
		func(c *nft.Conn) error { return b.flush(c, first, old.chains, nil) },
		func(c *nft.Conn) error {
			for _, chain := range gone {
				c.FlushChain(chain)
				c.DelChain(chain)
			}
			return b.flush(c, second, old.chains, nil)
		},
		func(c *nft.Conn) error {
			for _, s := range old.sets {
				c.DelSet(s)
			}
			return c.Flush()
		},
	}
	needed := []bool{len(want.Sets) > 0, true, len(second)+len(gone) > 0, len(old.sets) > 0}
	for i, step := range steps {
		if !needed[i] {
			continue
		}
		if err := withConn(ns, step); err != nil {
			return fmt.Errorf("step %d of %d: %w", i+1, len(steps), err)
		}
	}
	return nil
}

// stages orders chains by what captures inbound connections from now on: TPROXY's chains, or those of nat.
func stages(want iptables.Ruleset) (first, second []iptables.Chain) {
	tproxy := len(want.Routing) > 0
	for _, c := range want.Chains {
		if (c.Type != iptables.NAT) == tproxy {
			first = append(first, c)
		} else {
			second = append(second, c)
		}
	}
	return first, second
}

// shapedLike tells whether every chain stands where want has it, or is one that another of our Rulesets has.
func (k kernelTable) shapedLike(want iptables.Ruleset) bool {
	if k.table.Flags&nft.TableFlagDormant != 0 {
		return false
	}
	for _, c := range k.chains {
		have := chainOf(c, nil)
		known := slices.Contains(iptables.ChainNames(), c.Name)
		i := slices.IndexFunc(want.Chains, func(w iptables.Chain) bool { return w.Name == c.Name })
		if !known || i >= 0 && (have.Type != want.Chains[i].Type || have.Hook != want.Chains[i].Hook || have.Priority != want.Chains[i].Priority) {
			return false
		}
	}
	return true
}

// without gives the chains that want does not have.
func (k kernelTable) without(want iptables.Ruleset) []*nft.Chain {
	return slices.DeleteFunc(slices.Clone(k.chains), func(c *nft.Chain) bool {
		return slices.ContainsFunc(want.Chains, func(w iptables.Chain) bool { return w.Name == c.Name })
	})
}

// nextSuffix names the generation of sets that rules are to refer to, so that they never see a set that is being refilled: in
// the kernel, ".N" follows a set's name.
func nextSuffix(sets []*nft.Set) string {
	highest := -1
	for _, s := range sets {
		if n, err := strconv.Atoi(strings.TrimPrefix(s.Name, baseName(s.Name)+".")); err == nil {
			highest = max(highest, n)
		}
	}
	return "." + strconv.Itoa((highest+1)%maxGeneration)
}

// maxGeneration keeps names short; by then, number 0 is long gone.
const maxGeneration = 1000

// baseName is a set's name without its generation.
func baseName(name string) string {
	base, _, _ := strings.Cut(name, ".")
	return base
}
