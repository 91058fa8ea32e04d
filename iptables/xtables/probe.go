package xtables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	goiptables "github.com/coreos/go-iptables/iptables"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// Probe returns an error if the programs or the kernel do not accept a rule set. It tries in a namespace made for the purpose: what is
// read back must be what was written, and iptables itself must find the jumps. It returns the programs' version.
func (b *Backend) Probe(ctx context.Context, sample iptables.Ruleset) (version string, err error) {
	if b.missing != nil {
		return "", fmt.Errorf("probe iptables: %w", b.missing)
	}
	ns, err := netns.New()
	if err != nil {
		return "", fmt.Errorf("probe iptables: %w", err)
	}
	defer ns.Close() //nolint:errcheck // nothing was written that could be lost
	if _, err := b.Apply(ctx, ns.Path(), sample); err != nil {
		hint := ""
		if b.flavour == Legacy {
			hint = " (to this flavour the kernel speaks only with the capability NET_RAW)"
		}
		return "", fmt.Errorf("probe iptables: the rules are refused%s: %w", hint, err)
	}
	drift, err := b.Verify(ctx, ns.Path(), sample)
	if err == nil && len(drift) > 0 {
		err = fmt.Errorf("iptables prints other rules than it was given:\n%s", drift)
	}
	if err == nil {
		version, err = b.crossCheckUntil(ctx, ns, sample)
	}
	if err != nil {
		return version, fmt.Errorf("probe iptables: %w", err)
	}
	return version, nil
}

// crossCheckUntil runs crossCheck inside ns. go-iptables takes no context: a call that has not ended with ctx goes on in the background.
func (b *Backend) crossCheckUntil(ctx context.Context, ns *netns.NS, sample iptables.Ruleset) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, processTimeout)
	defer cancel()
	type result struct {
		version string
		err     error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		r.err = ns.Do(func() (err error) {
			r.version, err = b.crossCheck(sample)
			return err
		})
		done <- r
	}()
	select {
	case r := <-done:
		return r.version, r.err
	case <-ctx.Done():
		return "", fmt.Errorf("ask %s: %w", b.Name(), ctx.Err())
	}
}

// crossCheck looks for our jumps with iptables -C, which go-iptables runs.
func (b *Backend) crossCheck(sample iptables.Ruleset) (version string, err error) {
	for _, family := range slices.Sorted(maps.Keys(b.tools)) {
		if family == iptables.IPv6 && !hasIPv6() {
			continue
		}
		lib, v, err := b.tools[family].wrapped(family)
		if err != nil {
			return v, err
		}
		version = v
		if b.ownLock {
			continue // go-iptables cannot pass another lock file to its processes
		}
		for name, t := range parse(sample.RestoreText(family)) {
			for _, j := range t.jumps {
				if err := lookFor(lib, name, j); err != nil {
					return version, err
				}
			}
		}
	}
	return version, nil
}

func lookFor(lib *goiptables.IPTables, table string, j jump) error {
	found, err := lib.Exists(table, j.chain, j.words()...)
	if err == nil && !found {
		err = errors.New("it is not there")
	}
	if err != nil {
		return fmt.Errorf("look for the jump from %s to %s in table %s: %w", j.chain, j.target(), table, err)
	}
	return nil
}
