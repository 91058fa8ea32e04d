// Package xtables puts a Ruleset into a network namespace with iptables-restore and ip6tables-restore: our own chains and jumps
// to them, one run for each family, one transaction for each table.
package xtables

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/routing"
)

// lockSeconds is how long programs wait for the lock of iptables-legacy.
const lockSeconds = 5

// Config is what a Backend needs. Observe, which may be nil, is called after each save and restore process, not
// after a question for a version.
type Config struct {
	Flavour Flavour
	Observe func(program string, took time.Duration)
}

// Backend programs open namespaces, of which one goroutine at a time uses each.
type Backend struct{ programs programs }

// New returns a Backend of a flavour. Without the flavour's programs it can still say whether our rules are there (nft flavour only);
// everything else returns an error that names the missing program.
func New(ctx context.Context, c Config) *Backend {
	p := programs{flavour: c.Flavour, environ: environ(lockFile), observe: c.Observe}
	if p.observe == nil {
		p.observe = func(string, time.Duration) {}
	}
	p.tools, p.missing = find(ctx, c.Flavour)
	return &Backend{p}
}

// Name is the backend's name in flags and reports.
func (b *Backend) Name() string { return "iptables" }

// BuiltIn reports that our chains stand at the heads of iptables' own.
func (b *Backend) BuiltIn() bool { return true }

// Flavour returns the flavour that the Backend was made for.
func (b *Backend) Flavour() Flavour { return b.programs.flavour }

// Apply makes the namespace hold exactly want in our chains, with our jumps at the head of the built-in chains. It returns
// what differed before. Foreign rules are not touched. Each table of each family is changed as a whole or not at all, in an order that captures
// throughout (see plan). A change that fails half-way is finished by the next Apply, or by the backend that takes the namespace instead.
func (b *Backend) Apply(ctx context.Context, ns *netns.NS, want iptables.Ruleset) (out iptables.Outcome, err error) {
	if err := ctx.Err(); err != nil {
		return out, err
	}
	if err := ownerMatches(ns); err != nil {
		return out, err
	}
	var have snapshot
	var drift iptables.Drift
	err = ns.Alone(ctx, func() (same bool, err error) {
		have, drift, err = b.compare(ctx, ns, want)
		if len(drift) > 0 && have.empty() {
			drift = iptables.Drift{{Kind: iptables.KindAbsent, Text: "- chains " + iptables.ChainPrefix + "*"}}
		}
		return err == nil && len(drift) == 0, err
	}, func() error {
		iptables.SawDrift(ctx, drift)
		err := routing.Around(ns, want, func() (err error) {
			out.Transactions, err = b.restore(ctx, ns, have, wanted(have, want))
			return err
		})
		if err == nil {
			out.Drift = drift.Bounded()
		}
		return err
	})
	return out, err
}

// compare reads our rules and returns how they, addresses and routes differ from want.
func (b *Backend) compare(ctx context.Context, ns *netns.NS, want iptables.Ruleset) (have snapshot, drift iptables.Drift, err error) {
	if have, err = b.read(ctx, ns, false); err == nil {
		drift, err = have.drift(ns, want)
	}
	return have, drift, err
}

// restore changes have into want, both families at the same time. It returns the number of nf_tables transactions: programs of the nft flavour
// make at least one for each table.
func (b *Backend) restore(ctx context.Context, ns *netns.NS, have, want snapshot) (transactions int, err error) {
	var tables atomic.Int64
	err = eachFamily(ns, func(family uint32) error {
		if b.programs.flavour == NFT {
			tables.Add(int64(len(affected(have[family], want[family]))))
		}
		return b.programs.restore(ctx, family, plan(have[family], want[family]))
	})
	return int(tables.Load()), err
}

// Verify returns how the namespace differs from want. It writes nothing.
func (b *Backend) Verify(ctx context.Context, ns *netns.NS, want iptables.Ruleset) (iptables.Drift, error) {
	_, drift, err := b.compare(ctx, ns, want)
	return drift, err
}

// Yield removes our rules, and reports whether there were any. Tables of iptables stay, empty or with foreign rules. Addresses and routes stay:
// the backend that has taken over needs them. The nft flavour removes over netlink what its programs may not be able to read.
func (b *Backend) Yield(ctx context.Context, ns *netns.NS) (removed bool, err error) {
	var have snapshot
	var left [][]rawnetlink.Request
	err = ns.Alone(ctx, func() (none bool, err error) {
		var ok bool
		if b.programs.flavour == NFT {
			left, err = overNetlink(ns)
			ok = len(left) > 0
		} else if have, ok, err = b.held(ctx, ns, false); errors.Is(err, ErrUnusable) {
			err = nil // what cannot be read does not count as ours; what the other family holds does
		}
		return !ok, err
	}, func() error {
		removed = true
		if b.programs.flavour == NFT {
			return ns.Inside(func() error { return remove(left) })
		}
		_, err := b.restore(ctx, ns, have, snapshot{})
		return err
	})
	return removed, err
}

// overNetlink returns what removes our rules of the nft flavour.
func overNetlink(ns *netns.NS) (all [][]rawnetlink.Request, err error) {
	err = ns.Inside(func() error {
		all, err = removals()
		return err
	})
	return all, err
}

// Present reports whether the namespace holds any rules of ours.
func (b *Backend) Present(ctx context.Context, ns *netns.NS) (present bool, err error) {
	if b.programs.flavour == NFT {
		all, err := overNetlink(ns)
		return len(all) > 0, err
	}
	if _, present, err = b.held(ctx, ns, false); errors.Is(err, ErrUnusable) {
		err = nil // what the other family holds counts
	}
	return present, err
}

// List returns what the namespace holds of ours, with counters. ok is false if there is nothing.
func (b *Backend) List(ctx context.Context, ns *netns.NS) (have iptables.Listing, ok bool, err error) {
	rules, ok, err := b.held(ctx, ns, true)
	if err != nil || !ok {
		return have, ok, err
	}
	routes, err := routing.Read(ns)
	text := Text(routes, func(family uint32) string { return rules[family].listing() })
	view, lines := rules.shown(routes)
	return iptables.Listing{Language: iptables.LanguageIptables, Text: text, View: view, Lines: lines}, true, err
}
