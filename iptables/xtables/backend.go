// Package xtables puts a Ruleset into a network namespace by iptables-restore and ip6tables-restore: chains of our own and
// jumps to them, one run a family, one transaction a table.
package xtables

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/routing"
)

const (
	// lockSeconds is how long programs wait for the lock of iptables-legacy.
	lockSeconds = 5
	// undoTimeout is what putting back may take, also when the caller's time is up.
	undoTimeout = 10 * time.Second
)

// Config is what a Backend needs. Observe, which may be nil, is told of every process of its daily work.
type Config struct {
	Guard   netns.Guard
	Flavour Flavour
	Observe func(program string, took time.Duration)
}

// Backend programs namespaces. Every call opens the namespace anew, refuses the host's, and leaves no descriptor behind.
type Backend struct {
	guard   netns.Guard
	flavour Flavour
	observe func(string, time.Duration)
	environ []string
	ownLock bool
	tools   map[uint32]tools
	missing error
}

// New makes a Backend of a flavour. Without its programs it can still tell whether there are rules of ours (of the nft
// flavour); whatever takes a program is an error that names the one that is missing.
func New(ctx context.Context, c Config) *Backend {
	b := &Backend{guard: c.Guard, flavour: c.Flavour, observe: c.Observe}
	b.environ, b.ownLock = environ(lockFile)
	if b.observe == nil {
		b.observe = func(string, time.Duration) {}
	}
	b.tools, b.missing = find(ctx, c.Flavour)
	return b
}

// Name is the backend's name in flags and reports.
func (b *Backend) Name() string { return "iptables" }

// Flavour is the one that it was made for.
func (b *Backend) Flavour() Flavour { return b.flavour }

// Apply makes the namespace at path hold exactly want in our chains, with our jumps at the head of the built-in ones, and
// reports whether something had to change. What is refused leaves everything as it was; rules of others are not touched.
func (b *Backend) Apply(ctx context.Context, path string, want iptables.Ruleset) (changed bool, err error) {
	err = b.in(ctx, path, func(ns *netns.NS) error {
		if err := ownerMatches(ns); err != nil {
			return err
		}
		var have snapshot
		return ns.Alone(ctx, func() (same bool, err error) {
			have, same, err = b.compare(ctx, ns, want)
			return same, err
		}, func() error {
			changed = true
			return b.write(ctx, ns, have, want)
		})
	})
	return changed && err == nil, err
}

// compare reads what is there and reports whether it is want.
func (b *Backend) compare(ctx context.Context, ns *netns.NS, want iptables.Ruleset) (have snapshot, same bool, err error) {
	have, err = b.read(ctx, ns, false)
	if err != nil {
		return nil, false, err
	}
	drift, err := have.drift(ns, want)
	return have, len(drift) == 0, err
}

// write puts want in place of have. Addresses and routes come before the rules that need them and go after them.
func (b *Backend) write(ctx context.Context, ns *netns.NS, have snapshot, want iptables.Ruleset) error {
	beside, err := routing.Prepare(ns, want)
	if err != nil {
		return err
	}
	if err := b.restore(ctx, ns, have, wanted(have, want)); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		return errors.Join(err, b.putBack(ctx, ns, restorable(have, want)), beside.Undo())
	}
	return beside.Finish()
}

// restore makes have into want, both families at once.
func (b *Backend) restore(ctx context.Context, ns *netns.NS, have, want snapshot) error {
	return eachFamily(ns, func(family uint32) error {
		c := plan(have[family], want[family], b.flavour == NFT)
		if c.input != "" {
			if _, err := b.run(ctx, c.input, b.tools[family].restore, "--noflush", "-w", strconv.Itoa(lockSeconds)); err != nil {
				return err
			}
		}
		return dropTables(family, c.spare)
	})
}

// putBack makes the namespace what it was, as far as that is restorable, whatever of a change has come to pass.
func (b *Backend) putBack(ctx context.Context, ns *netns.NS, before snapshot) error {
	now, err := b.read(ctx, ns, false)
	if err == nil {
		err = b.restore(ctx, ns, now, before)
	}
	if err != nil {
		return fmt.Errorf("put back what was there: %w", err)
	}
	return nil
}

// Verify tells how the namespace at path differs from want. It writes nothing.
func (b *Backend) Verify(ctx context.Context, path string, want iptables.Ruleset) (drift iptables.Drift, err error) {
	err = b.in(ctx, path, func(ns *netns.NS) error {
		have, err := b.read(ctx, ns, false)
		if err != nil {
			return err
		}
		drift, err = have.drift(ns, want)
		return err
	})
	return drift, err
}

// Remove takes away all that we own in the namespace at path and reports whether there was anything. A table goes if it came
// with us and holds nothing else now; a legacy table stays, as the kernel keeps it until the namespace ends.
func (b *Backend) Remove(ctx context.Context, path string) (removed bool, err error) {
	err = b.in(ctx, path, func(ns *netns.NS) error {
		rules, err := b.clear(ctx, ns)
		if err != nil {
			return err
		}
		// Also without a rule: an agent that was killed between the two leaves what stands beside them.
		beside, err := routing.Remove(ns)
		removed = rules || beside
		return err
	})
	return removed, err
}

// Yield takes away the rules alone and reports whether there were any: addresses and routes are those of the backend that has
// taken over.
func (b *Backend) Yield(ctx context.Context, path string) (removed bool, err error) {
	err = b.in(ctx, path, func(ns *netns.NS) error {
		removed, err = b.clear(ctx, ns)
		return err
	})
	return removed, err
}

func (b *Backend) clear(ctx context.Context, ns *netns.NS) (removed bool, err error) {
	var have snapshot
	err = ns.Alone(ctx, func() (none bool, err error) {
		var ok bool
		have, ok, err = b.held(ctx, ns, false)
		return !ok, err
	}, func() error {
		removed = true
		return b.restore(ctx, ns, have, snapshot{})
	})
	return removed, err
}

// Present reports whether the namespace at path holds any rules of ours.
func (b *Backend) Present(ctx context.Context, path string) (present bool, err error) {
	err = b.in(ctx, path, func(ns *netns.NS) error {
		if present, err = b.possible(ns); present && b.flavour == Legacy {
			_, present, err = b.held(ctx, ns, false)
		}
		return err
	})
	return present, err
}

// in opens the namespace at path for f.
func (b *Backend) in(ctx context.Context, path string, f func(*netns.NS) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("program network namespace: %w", err)
	}
	ns, err := b.guard.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f(ns), ns.Close())
}
