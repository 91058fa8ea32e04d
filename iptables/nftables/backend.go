// Package nftables puts a Ruleset into a network namespace over netlink: one table of our own, no process started, one
// transaction for a fresh namespace and steps that no packet slips through for a change.
package nftables

import (
	"context"
	"errors"
	"fmt"

	nft "github.com/google/nftables"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/routing"
)

// Backend programs namespaces. Every call opens the namespace anew, refuses the host's, and leaves no descriptor behind.
type Backend struct {
	guard  netns.Guard
	memory *memory
}

// New makes a Backend that opens namespaces through guard.
func New(guard netns.Guard) *Backend { return &Backend{guard: guard, memory: newMemory()} }

// Name is the backend's name in flags and reports.
func (b *Backend) Name() string { return "nftables" }

// Apply makes the namespace at path hold exactly want in our table, and tells whether something had to change. A
// fresh namespace gets the whole or nothing, a change is made in steps (see commit); foreign tables are not touched.
func (b *Backend) Apply(ctx context.Context, path string, want iptables.Ruleset) (changed bool, err error) {
	err = b.in(ctx, path, func(ns *netns.NS, conn *nft.Conn) error {
		now, same, err := b.glance(ns, conn, want)
		if err != nil || same {
			return err
		}
		var old kernelTable
		return ns.Alone(ctx, func() (same bool, err error) {
			old, same, err = b.compare(ns, conn, want, now)
			return same, err
		}, func() error {
			changed = true
			b.memory.forget(ns.ID())
			if err := write(ns, conn, old, want); err != nil {
				return err
			}
			b.learn(conn, ns.ID(), old, now)
			return nil
		})
	})
	return changed && err == nil, err
}

// learn remembers what a first transaction has written, which is one generation: if the next one is here, nobody else has
// changed anything since now. Reading it all instead would cost as much as writing it.
func (b *Backend) learn(conn *nft.Conn, id netns.ID, old kernelTable, now sight) {
	if gen, err := conn.GetGen(); err == nil && old.table == nil && gen.ID == now.generation+1 {
		b.memory.note(id, sight{generation: gen.ID, hash: now.hash})
	}
}

// compare reads our table and tells whether the namespace holds want, which is then remembered of now.
func (b *Backend) compare(ns *netns.NS, conn *nft.Conn, want iptables.Ruleset, now sight) (old kernelTable, same bool, err error) {
	old, err = lookUp(conn)
	if err != nil || old.table == nil {
		return old, false, err
	}
	have, err := readAll(ns, conn, old)
	if err != nil {
		return old, false, err
	}
	if same = len(iptables.Diff(want, have)) == 0; same {
		b.memory.note(ns.ID(), now)
	}
	return old, same, nil
}

// write commits want in place of old. Addresses and routes come before the rules that need them, and go after them.
func write(ns *netns.NS, conn *nft.Conn, old kernelTable, want iptables.Ruleset) error {
	beside, err := routing.Prepare(ns, want)
	if err != nil {
		return err
	}
	if err := commit(ns, conn, old, want); err != nil {
		return errors.Join(fmt.Errorf("commit nftables transaction: %w", err), beside.Undo())
	}
	return beside.Finish()
}

// Verify tells how the namespace at path differs from want. It writes nothing.
func (b *Backend) Verify(ctx context.Context, path string, want iptables.Ruleset) (drift iptables.Drift, err error) {
	err = b.in(ctx, path, func(ns *netns.NS, conn *nft.Conn) error {
		now, same, err := b.glance(ns, conn, want)
		if err != nil || same {
			return err
		}
		old, err := lookUp(conn)
		if err != nil {
			return err
		}
		have, err := readAll(ns, conn, old)
		if err != nil {
			return err
		}
		if drift = iptables.Diff(want, have); len(drift) == 0 && old.table != nil {
			b.memory.note(ns.ID(), now)
		}
		return nil
	})
	return drift, err
}

// Present tells whether the namespace at path holds anything of ours.
func (b *Backend) Present(ctx context.Context, path string) (present bool, err error) {
	err = b.in(ctx, path, func(_ *netns.NS, conn *nft.Conn) error {
		table, err := ownTable(conn)
		present = table != nil
		return err
	})
	return present, err
}

// Remove takes away all that we own in the namespace at path and tells whether there was anything.
func (b *Backend) Remove(ctx context.Context, path string) (removed bool, err error) {
	err = b.in(ctx, path, func(ns *netns.NS, conn *nft.Conn) error {
		deleted, err := deleteTable(ctx, ns, conn)
		if err != nil {
			return err
		}
		// Also without a table: an agent that was killed between the two leaves what stands beside it.
		beside, err := routing.Remove(ns)
		removed = deleted || beside
		return err
	})
	return removed, err
}

// Read gives what the namespace at path holds of ours, with counters; ok is false where there is nothing.
func (b *Backend) Read(ctx context.Context, path string) (have iptables.Ruleset, ok bool, err error) {
	err = b.in(ctx, path, func(ns *netns.NS, conn *nft.Conn) error {
		old, err := lookUp(conn)
		if err != nil || old.table == nil {
			return err
		}
		ok = true
		have, err = readAll(ns, conn, old)
		return err
	})
	return have, ok, err
}

func (b *Backend) in(ctx context.Context, path string, f func(*netns.NS, *nft.Conn) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("program network namespace: %w", err)
	}
	ns, err := b.guard.Open(path)
	if err != nil {
		return err
	}
	err = withConn(ns, func(conn *nft.Conn) error { return f(ns, conn) })
	return errors.Join(err, ns.Close())
}

// withConn gives f a socket inside the namespace. It does not outlive the call: it would keep the namespace of a deleted pod
// alive.
func withConn(ns *netns.NS, f func(*nft.Conn) error) error {
	conn, err := nft.New(nft.WithNetNSFd(ns.Fd()), nft.AsLasting())
	if err != nil {
		return fmt.Errorf("open nftables socket: %w", err)
	}
	return errors.Join(f(conn), conn.CloseLasting())
}

func readAll(ns *netns.NS, conn *nft.Conn, old kernelTable) (iptables.Ruleset, error) {
	have, err := old.read(ns, conn)
	if err != nil {
		return have, err
	}
	beside, err := routing.Read(ns)
	have.Loopback, have.Routing = beside.Loopback, beside.Routing
	return have, err
}

// Probe tells whether this kernel takes a rule set, by giving it one in a namespace made for the purpose.
func (b *Backend) Probe(ctx context.Context, sample iptables.Ruleset) error {
	ns, err := netns.New()
	if err != nil {
		return fmt.Errorf("probe nftables: %w", err)
	}
	defer ns.Close() //nolint:errcheck // nothing was written that could be lost
	if _, err := b.Apply(ctx, ns.Path(), sample); err != nil {
		return fmt.Errorf("probe nftables: the kernel refuses our rules (it takes Linux 5.2 or newer with nf_tables NAT): %w", err)
	}
	return nil
}
