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
	"hash/maphash"
	"slices"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/routing"
)

// Backend programs namespaces. Each call opens the namespace anew, refuses the host's, and leaves no descriptor open. It
// returns soon after its deadline, and returns a panic as a *netns.PanicError.
type Backend struct {
	guard      netns.Guard
	seed       maphash.Seed
	references *references
	recorded   *recorded
	visits     *netns.Visits
}

// New returns a Backend that opens namespaces through guard.
func New(guard netns.Guard) *Backend {
	return &Backend{
		guard: guard, seed: maphash.MakeSeed(), references: newReferences(), recorded: newRecorded(), visits: netns.NewVisits(),
	}
}

// Name is the backend's name in flags and reports.
func (b *Backend) Name() string { return "nftables" }

// Apply makes the namespace at path hold exactly want in our table, and returns what differed before. A fresh namespace gets all or
// nothing. An existing table is changed in steps (see commit). Tables of others are not touched.
func (b *Backend) Apply(ctx context.Context, path string, want iptables.Ruleset) (iptables.Outcome, error) {
	return visit(ctx, b, path, func(ctx context.Context, ns *netns.NS, s *socket) (iptables.Outcome, error) {
		return b.apply(ctx, ns, s, want)
	})
}

func (b *Backend) apply(ctx context.Context, ns *netns.NS, s *socket, want iptables.Ruleset) (out iptables.Outcome, err error) {
	var c comparison
	err = ns.Alone(ctx, func() (same bool, err error) {
		c, err = b.compare(ctx, ns, s, want)
		if err == nil && c.have.flags()&tableFlagOwner != 0 {
			err = fmt.Errorf("table inet %s: %w", iptables.TableName, ErrOwned)
		}
		return err == nil && len(c.drift) == 0, err
	}, func() error {
		iptables.SawDrift(ctx, c.drift)
		drift := c.describe(ctx, s, want)
		fresh, err := b.recorded.of(want, want.Hash(b.seed))
		if err != nil {
			return err
		}
		if err := write(ctx, ns, c, want, fresh); err != nil {
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
func (b *Backend) compare(ctx context.Context, ns *netns.NS, s *socket, want iptables.Ruleset) (c comparison, err error) {
	c.have, err = s.outline(ctx)
	if err != nil || !c.have.exists() {
		c.drift = c.have.differences(outline{})
		return c, err
	}
	if c.ref, err = b.references.of(ctx, want, want.Hash(b.seed)); err != nil {
		return c, err
	}
	c.drift = c.have.differences(c.ref.outline)
	if c.shape = len(c.drift) > 0; c.shape {
		return c, nil
	}
	c.drift, err = s.differences(ctx, c.have, want, c.ref)
	if err != nil || len(c.drift) > 0 {
		return c, err
	}
	c.drift, err = routing.Drift(ns, want)
	return c, err
}

// write replaces what is there with want. Addresses and routes are added before the rules that need them, and removed after them.
func write(ctx context.Context, ns *netns.NS, c comparison, want iptables.Ruleset, fresh transaction) error {
	routes, err := routing.Prepare(ns, want)
	if err != nil {
		return err
	}
	if err := commit(ctx, ns, c.have, c.ref.outline, want, fresh); err != nil {
		return errors.Join(fmt.Errorf("commit nftables transaction: %w", err), routes.Undo())
	}
	return routes.Finish()
}

// Verify returns how the namespace at path differs from want. It writes nothing.
func (b *Backend) Verify(ctx context.Context, path string, want iptables.Ruleset) (iptables.Drift, error) {
	return visit(ctx, b, path, func(ctx context.Context, ns *netns.NS, s *socket) (iptables.Drift, error) {
		return b.verify(ctx, ns, s, want)
	})
}

func (b *Backend) verify(ctx context.Context, ns *netns.NS, s *socket, want iptables.Ruleset) (iptables.Drift, error) {
	c, err := b.compare(ctx, ns, s, want)
	if err != nil || len(c.drift) == 0 {
		return nil, err
	}
	return c.describe(ctx, s, want), nil
}

// describe returns the differences, and names the rules where only their number was compared. Those of a dormant table have no effect.
func (c comparison) describe(ctx context.Context, s *socket, want iptables.Ruleset) iptables.Drift {
	if !c.shape || c.have.flags()&tableFlagDormant != 0 {
		return c.drift
	}
	left := maxShownRules
	generation, _ := c.have.generation()
	have, err := s.rules(ctx, generation, func(string, int) bool { left--; return left > 0 })
	rules := ruleDrift(want, have, c.ref.content.chains)
	if err != nil || len(rules) == 0 {
		return c.drift
	}
	numbers := func(d iptables.Difference) bool { return d.Kind == iptables.KindRules }
	return append(rules, slices.DeleteFunc(c.drift, numbers)...)
}

// Present reports whether the namespace at path holds anything of ours.
func (b *Backend) Present(ctx context.Context, path string) (present bool, err error) {
	return visit(ctx, b, path, func(ctx context.Context, _ *netns.NS, s *socket) (bool, error) {
		o, err := s.outline(ctx)
		return o.exists(), err
	})
}

// Remove removes everything that we own in the namespace at path, and reports whether there was anything.
func (b *Backend) Remove(ctx context.Context, path string) (removed bool, err error) {
	return visit(ctx, b, path, func(ctx context.Context, ns *netns.NS, s *socket) (bool, error) {
		deleted, err := deleteTable(ctx, ns, s)
		if err != nil {
			return false, err
		}
		// Also without a table: an agent that was killed between the two steps leaves addresses and routes.
		removedRoutes, err := routing.Remove(ns)
		return deleted || removedRoutes, err
	})
}

// Read returns what the namespace at path holds of ours, with counters. ok is false if there is nothing.
func (b *Backend) Read(ctx context.Context, path string) (have iptables.Ruleset, ok bool, err error) {
	found, err := visit(ctx, b, path, func(ctx context.Context, ns *netns.NS, s *socket) (*iptables.Ruleset, error) {
		o, err := s.outline(ctx)
		if err != nil || !o.exists() {
			return nil, err
		}
		have, err := read(ctx, ns, s, o)
		return &have, err
	})
	if found == nil {
		return have, false, err
	}
	return *found, true, err
}

func read(ctx context.Context, ns *netns.NS, s *socket, o outline) (iptables.Ruleset, error) {
	have, err := s.show(ctx, o)
	if err != nil {
		return have, err
	}
	routes, err := routing.Read(ns)
	have.Loopback, have.Routing = routes.Loopback, routes.Routing
	return have, err
}

// Probe returns an error if this kernel does not accept a rule set. It tries in a namespace made for the purpose.
func (b *Backend) Probe(ctx context.Context, sample iptables.Ruleset) error {
	ns, err := netns.New()
	if err != nil {
		return fmt.Errorf("probe nftables: %w", err)
	}
	defer ns.Close() //nolint:errcheck // nothing was written that could be lost
	if _, err := b.Apply(ctx, ns.Path(), sample); err != nil {
		return fmt.Errorf("probe nftables: the kernel refuses our rules (it needs Linux 5.2 or newer with nf_tables NAT): %w", err)
	}
	return nil
}
