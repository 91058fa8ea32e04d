// Package nftables puts a Ruleset into a network namespace over netlink. It owns one table and starts no process. A fresh namespace
// is written in one transaction, an existing table is changed in steps during which no connection bypasses the rules.
//
// A pod may have the right to change its namespace's nftables, so what is read there counts as hostile: it is read in bounded parts,
// compared byte by byte with what the kernel returns for our own rules, and decoded only to be printed.
package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/routing"
)

// Backend programs open namespaces, of which one goroutine at a time uses each. After the deadline of its context a call begins no new
// transaction.
type Backend struct{ compiled *compiled }

// New returns a Backend.
func New() *Backend { return &Backend{newCompiled()} }

// Name is the backend's name in flags and reports.
func (b *Backend) Name() string { return "nftables" }

// BuiltIn reports that our chains stand in a table of ours.
func (b *Backend) BuiltIn() bool { return false }

// Apply makes the namespace hold exactly want in our table, and returns what differed before. While a process of the pod owns a table of
// that name, the rules are in a second table. A fresh namespace gets all or nothing. An existing table is changed in steps (see commit). Foreign tables are not touched.
func (b *Backend) Apply(ctx context.Context, ns *netns.NS, want iptables.Ruleset) (out iptables.Outcome, err error) {
	var c comparison
	err = ns.Alone(ctx, func() (same bool, err error) {
		c, err = b.compare(ctx, ns, want)
		if err == nil && c.have.owned() {
			err = fmt.Errorf("tables inet %s and %s: %w", iptables.TableName, iptables.SecondTableName, ErrOwned)
		}
		out.Provisional = c.have.name != iptables.TableName
		return err == nil && len(c.drift) == 0, err
	}, func() error {
		iptables.SawDrift(ctx, c.drift)
		drift := c.describe(ctx, ns, want)
		fresh, err := b.compiled.transaction(want)
		if err != nil {
			return err
		}
		if out.Transactions, err = write(ctx, ns, c, want, fresh); err != nil {
			return err
		}
		out.Drift = drift.Bounded()
		return nil
	})
	return out, err
}

// comparison is how a namespace differs from what it should hold.
type comparison struct {
	have  outline
	ref   reference // what it should look like; unset if there is no table
	drift iptables.Drift
	shape bool // the differences are of the table, its chains and sets, not of their content
}

// compare reads our table and compares it with want.
func (b *Backend) compare(ctx context.Context, ns *netns.NS, want iptables.Ruleset) (c comparison, err error) {
	c.have, err = readOutline(ctx, ns)
	if err != nil || !c.have.exists() {
		c.drift = c.have.differences(outline{})
		return c, err
	}
	if c.ref, err = b.compiled.reference(ctx, want); err != nil {
		return c, err
	}
	c.drift = c.have.differences(c.ref.outline)
	if c.shape = len(c.drift) > 0; c.shape {
		return c, nil
	}
	c.drift, err = contentDrift(ctx, ns, c.have, want, c.ref)
	if err != nil || len(c.drift) > 0 {
		return c, err
	}
	c.drift, err = routing.Drift(ns, want)
	return c, err
}

// write replaces our table by want, with addresses and routes, and then deletes the second table if it is not needed any more.
func write(ctx context.Context, ns *netns.NS, c comparison, want iptables.Ruleset, fresh transaction) (made int, err error) {
	err = routing.Around(ns, want, func() (err error) {
		made, err = commit(ctx, ns, c.have, c.ref.outline, want, fresh)
		if err == nil && c.have.surplus {
			var did bool
			if did, err = deleteNamed(ctx, ns, iptables.SecondTableName); did {
				made++
			}
		}
		if err != nil {
			return fmt.Errorf("commit nftables transaction: %w", err)
		}
		return nil
	})
	return made, err
}

// Verify returns how the namespace differs from want. It writes nothing.
func (b *Backend) Verify(ctx context.Context, ns *netns.NS, want iptables.Ruleset) (iptables.Drift, error) {
	c, err := b.compare(ctx, ns, want)
	if err != nil || len(c.drift) == 0 {
		return nil, err
	}
	return c.describe(ctx, ns, want), nil
}

// describe returns the differences, and names the rules where only their number was compared. Those of a dormant table have no effect.
func (c comparison) describe(ctx context.Context, ns *netns.NS, want iptables.Ruleset) iptables.Drift {
	if !c.shape || c.have.flags()&tableFlagDormant != 0 {
		return c.drift
	}
	left := maxShownRules
	have, err := readRules(ctx, ns, c.have, func(string, int) bool { left--; return left > 0 })
	rules := ruleDrift(want, have, c.ref.content.chains)
	if err != nil || len(rules) == 0 {
		return c.drift
	}
	numbers := func(d iptables.Difference) bool { return d.Kind == iptables.KindRules }
	return append(rules, slices.DeleteFunc(c.drift, numbers)...)
}

// Present reports whether the namespace holds anything of ours.
func (b *Backend) Present(ctx context.Context, ns *netns.NS) (present bool, err error) {
	o, err := readOutline(ctx, ns)
	return o.present(), err
}

// Yield removes our rules, and reports whether there were any. Addresses and routes stay: the backend that has taken over needs
// them.
func (b *Backend) Yield(ctx context.Context, ns *netns.NS) (removed bool, err error) {
	var o outline
	err = ns.Alone(ctx, func() (none bool, err error) {
		o, err = readOutline(ctx, ns)
		return !o.present(), err
	}, func() (err error) {
		if o.exists() && !o.owned() {
			_, err = deleteNamed(ctx, ns, o.name)
		}
		if o.surplus {
			_, errSecond := deleteNamed(ctx, ns, iptables.SecondTableName)
			err = errors.Join(err, errSecond)
		}
		removed = err == nil
		return err
	})
	return removed, err
}

// deleteNamed deletes a table of ours, and reports whether it was there; absent is success.
func deleteNamed(ctx context.Context, ns *netns.NS, table string) (did bool, err error) {
	err = transaction{deleteTable()}.in(table).commit(ctx, ns, anyGeneration)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return false, fmt.Errorf("delete table %s: %w", table, err)
	}
	return err == nil, nil
}

// List returns what the namespace holds of ours, with counters. ok is false if there is nothing.
func (b *Backend) List(ctx context.Context, ns *netns.NS) (iptables.Listing, bool, error) {
	have, ok, err := b.Read(ctx, ns)
	return iptables.Listing{
		Language: iptables.LanguageNft, Text: have.NftText(iptables.TextOptions{Counters: true}), View: have.View(), Lines: have.Lines(),
	}, ok, err
}

// Read is List as data.
func (b *Backend) Read(ctx context.Context, ns *netns.NS) (have iptables.Ruleset, ok bool, err error) {
	o, err := readOutline(ctx, ns)
	if !o.exists() && o.surplus {
		o, err = readTable(ctx, ns, iptables.SecondTableName)
	}
	if err != nil || !o.exists() || o.owned() {
		return have, false, err
	}
	if have, err = show(ctx, ns, o); err != nil {
		return have, false, err
	}
	routes, err := routing.Read(ns)
	have.Loopback, have.Routing, have.Unsourced = routes.Loopback, routes.Routing, routes.Unsourced
	return have, err == nil, err
}

// Probe returns an error if this kernel does not accept a rule set. It tries in a namespace made for the purpose.
func (b *Backend) Probe(ctx context.Context, sample iptables.Ruleset) error {
	ns, err := netns.New()
	if err != nil {
		return fmt.Errorf("probe nftables: %w", err)
	}
	defer ns.Close() //nolint:errcheck // nothing was written that could be lost
	if _, err := b.Apply(ctx, ns, sample); err != nil {
		return fmt.Errorf("probe nftables: the kernel refuses our rules (it needs Linux 5.2 or newer with nf_tables NAT): %w", err)
	}
	return nil
}
