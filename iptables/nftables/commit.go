package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	nft "github.com/google/nftables"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// commit makes our table, which is old, hold exactly want, which looks like ref.
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
// Any other table, which somebody else has worked on, is deleted and made anew, and so is one that the steps fail at.
func commit(ctx context.Context, ns *netns.NS, old, ref outline, want iptables.Ruleset) error {
	if old.exists() && old.shapedLike(ref) {
		err := refill(ctx, ns, old, want)
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
	return replace(ctx, ns, old.exists(), want)
}

// replace deletes the table where there is one and makes it anew, in one transaction.
func replace(ctx context.Context, ns *netns.NS, exists bool, want iptables.Ruleset) error {
	return insist(ctx, func() error {
		err := transact(ctx, ns, func(c *nft.Conn) error {
			if exists {
				c.DelTable(ownTable())
			}
			c.CreateTable(ownTable())
			return batch{table: ownTable(), suffix: ".0"}.flush(c, want.Chains, nil, want.Sets)
		})
		switch {
		case errors.Is(err, unix.ENOENT):
			exists = false
		case errors.Is(err, unix.EEXIST):
			exists = true
		}
		return err
	})
}

// refill changes a table of our shape in steps.
func refill(ctx context.Context, ns *netns.NS, old outline, want iptables.Ruleset) error {
	b := batch{table: ownTable(), suffix: nextSuffix(old.sets)}
	first, second := stages(want)
	gone := old.without(want)
	steps := []func(*nft.Conn) error{
		func(c *nft.Conn) error { return b.flush(c, nil, nil, want.Sets) },
		func(c *nft.Conn) error { return b.flush(c, first, old.chains, nil) },
		func(c *nft.Conn) error {
			for _, name := range gone {
				chain := &nft.Chain{Table: b.table, Name: name}
				c.FlushChain(chain)
				c.DelChain(chain)
			}
			return b.flush(c, second, old.chains, nil)
		},
		func(c *nft.Conn) error {
			for name := range old.sets {
				c.DelSet(&nft.Set{Table: b.table, Name: name})
			}
			return c.Flush()
		},
	}
	needed := []bool{len(want.Sets) > 0, true, len(second)+len(gone) > 0, len(old.sets) > 0}
	for i, step := range steps {
		if !needed[i] {
			continue
		}
		if err := transact(ctx, ns, step); err != nil {
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

// shapedLike reports whether there is nothing but chains of ours, where ref has them, and sets.
func (o outline) shapedLike(ref outline) bool {
	if o.foreign || without([]byte(o.table), unix.NFTA_TABLE_USE) != without([]byte(ref.table), unix.NFTA_TABLE_USE) {
		return false
	}
	for name, want := range ref.chains {
		have, ok := o.chains[name]
		if ok && without([]byte(have), unix.NFTA_CHAIN_USE) != without([]byte(want), unix.NFTA_CHAIN_USE) {
			return false
		}
	}
	return true
}

// without gives the chains that want does not have.
func (o outline) without(want iptables.Ruleset) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(o.chains)), func(name string) bool {
		return slices.ContainsFunc(want.Chains, func(w iptables.Chain) bool { return w.Name == name })
	})
}

// nextSuffix names the generation of sets that rules are to refer to, so that they never see a set that is being refilled: in
// the kernel, ".N" follows a set's name.
func nextSuffix(sets map[string]string) string {
	highest := -1
	for name := range sets {
		if n, err := strconv.Atoi(strings.TrimPrefix(name, baseName(name)+".")); err == nil {
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
