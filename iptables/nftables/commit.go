package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// commit makes our table, whose outline is old, hold exactly want, whose outline is ref. fresh makes it from nothing. It returns the number of
// transactions.
//
// A fresh namespace is written in one transaction without deletions: after a deletion, closing a socket waits until no packet
// uses the deleted rules, which takes milliseconds.
//
// A table of our shape is changed in steps, because a transaction is atomic only for each chain and set: a packet looks up the current
// generation each time that it comes to one. So:
//
//   - Chains are refilled in place. With a new chain next to the old one, a packet could pass the new one while it is still empty, and
//     the old one when it is already empty.
//   - Where chains come or go, as in a change of mode, new capturing chains are filled before old ones are emptied. Between them is
//     a wait for the packets that have passed the new chains too early. Otherwise, all chains are refilled together.
//   - New sets are added before the rules that use them. Old sets go with their last rules, and packets under way can still use them.
//
// Any other table was changed by somebody else: it is deleted and made anew. So is one for which the steps fail, and the second table.
func commit(ctx context.Context, ns *netns.NS, old, ref outline, want iptables.Ruleset, fresh transaction) (made int, err error) {
	if old.exists() && old.name == iptables.TableName && old.shapedLike(ref) {
		made, err = refill(ctx, ns, old, want)
		if err == nil || ctx.Err() != nil {
			return made, err
		}
	}
	return made + 1, replace(ctx, ns, old.name, old.exists(), fresh)
}

// attempts is how often a transaction is tried that fails because somebody else changes the rules at the same time.
const attempts = 5

// replace makes a table anew in one transaction, which deletes the old one if exists says that there is one.
func replace(ctx context.Context, ns *netns.NS, table string, exists bool, fresh transaction) (err error) {
	for range attempts {
		t := fresh
		if exists {
			t = slices.Insert(slices.Clone(fresh), 0, deleteTable())
		}
		err = t.in(table).commit(ctx, ns, anyGeneration)
		switch {
		case errors.Is(err, unix.ENOENT):
			exists = false
		case errors.Is(err, unix.EEXIST):
			exists = true
		case !errors.Is(err, unix.EBUSY):
			return err
		}
	}
	return err
}

// refill changes a table of our shape in steps.
func refill(ctx context.Context, ns *netns.NS, old outline, want iptables.Ruleset) (made int, err error) {
	suffix := nextSuffix(old.sets)
	first, second := stages(want)
	added, errAdded := fill(suffix, nil, nil, want.Sets)
	captured, errCaptured := fill(suffix, first, old.chains, nil)
	rest, errRest := fill(suffix, second, old.chains, nil)
	if err := errors.Join(errAdded, errCaptured, errRest); err != nil {
		return 0, err
	}
	gone := old.without(want)
	var empty transaction
	for _, name := range gone {
		empty = append(empty, flushChain(name))
	}
	rest = append(empty, rest...)
	for _, name := range gone { // no rule jumps to one any more, which would keep it
		rest = append(rest, message(unix.NFT_MSG_DELCHAIN, 0, rawnetlink.Text(unix.NFTA_CHAIN_NAME, name)))
	}
	for name := range old.sets {
		rest = append(rest, message(unix.NFT_MSG_DELSET, 0, rawnetlink.Text(unix.NFTA_SET_NAME, name)))
	}
	if len(gone) == 0 && len(old.chains) == len(want.Chains) {
		captured, rest = nil, append(captured, rest...)
	}
	for i, t := range []transaction{added, captured, rest} {
		if len(t) == 0 {
			continue
		}
		if i == 2 && len(captured) > 0 {
			if err := settle(ns); err != nil {
				return made, err
			}
		}
		if err := t.commit(ctx, ns, anyGeneration); err != nil {
			return made, fmt.Errorf("step %d of 3: %w", i+1, err)
		}
		made++
	}
	return made, nil
}

// stages splits the chains: first come the chains that capture inbound connections in want's mode (TPROXY's, or nat's), then the rest.
func stages(want iptables.Ruleset) (first, second []iptables.Chain) {
	for _, c := range want.Chains {
		if (c.Type != iptables.NAT) == want.Routing {
			first = append(first, c)
		} else {
			second = append(second, c)
		}
	}
	return first, second
}

// shapedLike reports whether the table holds only sets, and chains of ours with the type, hook and flags that they have in ref.
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

// without returns the names of chains that want does not have.
func (o outline) without(want iptables.Ruleset) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(o.chains)), func(name string) bool {
		return slices.ContainsFunc(want.Chains, func(w iptables.Chain) bool { return w.Name == name })
	})
}

// nextSuffix returns the suffix ".N" of the next generation of sets. New rules use new sets, which are never
// refilled.
func nextSuffix(sets map[string]string) string {
	highest := -1
	for name := range sets {
		if n, err := strconv.Atoi(strings.TrimPrefix(name, baseName(name)+".")); err == nil {
			highest = max(highest, n)
		}
	}
	return "." + strconv.Itoa((highest+1)%maxGeneration)
}

// maxGeneration keeps names short. When the numbers start again at 0, the sets with number 0 are long gone.
const maxGeneration = 1000

// baseName returns a set's name without its generation.
func baseName(name string) string {
	base, _, _ := strings.Cut(name, ".")
	return base
}
