package xtables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/routing"
)

// ownProc is where the kernel shows the network namespace of the calling thread.
const ownProc = "/proc/thread-self/net"

// snapshot is what a namespace holds of ours, by family. It has no entry for a family that the namespace does not have.
type snapshot map[uint32]state

// wanted renders want for the families of have, and parses it like any other text.
func wanted(have snapshot, want iptables.Ruleset) snapshot {
	out := snapshot{}
	for family := range have {
		out[family] = parse(want.RestoreText(family))
	}
	return out
}

// drift returns how the snapshot, with the addresses and routes of ns, differs from want.
func (s snapshot) drift(ns *netns.NS, want iptables.Ruleset) (iptables.Drift, error) {
	drift, err := routing.Drift(ns, want)
	if err != nil {
		return nil, err
	}
	for _, family := range slices.Sorted(maps.Keys(s)) {
		drift = append(drift, iptables.TextDrift(want.RestoreText(family), s[family].text())...)
	}
	return drift, nil
}

// empty reports whether there is nothing of ours.
func (s snapshot) empty() bool {
	for _, tables := range s {
		if len(tables.names()) > 0 {
			return false
		}
	}
	return true
}

// read returns a snapshot. It starts no process for a family without tables.
func (b *Backend) read(ctx context.Context, ns *netns.NS, counters bool) (snapshot, error) {
	if b.missing != nil {
		return nil, b.missing
	}
	var mu sync.Mutex
	out := snapshot{}
	err := eachFamily(ns, func(family uint32) error {
		saved, err := b.save(ctx, family, counters)
		mu.Lock()
		defer mu.Unlock()
		out[family] = parse(saved)
		return err
	})
	return out, err
}

func (b *Backend) save(ctx context.Context, family uint32, counters bool) (string, error) {
	has, err := b.hasTables(family)
	if err != nil || !has {
		return "", err
	}
	var args []string
	if counters {
		args = append(args, "-c")
	}
	saved, err := b.run(ctx, "", b.tools[family].save, args...)
	// Rules that cannot be read would be written again each time.
	if m := unreadable().FindStringSubmatch(saved); m != nil {
		return "", fmt.Errorf("%s cannot read table %s: it holds what only nft understands; use the nftables backend",
			filepath.Base(b.tools[family].save), m[1])
	}
	return saved, err
}

// eachFamily runs f for each family of the namespace, at the same time, each on a thread inside.
func eachFamily(ns *netns.NS, f func(family uint32) error) error {
	var wg sync.WaitGroup
	errs := map[uint32]*error{iptables.IPv4: new(error), iptables.IPv6: new(error)}
	for family, err := range errs {
		wg.Go(func() {
			*err = ns.Inside(func() error {
				if family == iptables.IPv6 && !hasIPv6() {
					return nil
				}
				return f(family)
			})
		})
	}
	wg.Wait()
	return errors.Join(*errs[iptables.IPv4], *errs[iptables.IPv6])
}

// unreadable matches iptables-save's remark about a table that we need and that it leaves out.
func unreadable() *regexp.Regexp {
	return regexp.MustCompile("Table `(raw|mangle|nat)' is incompatible")
}

// hasIPv6 reports whether the namespace of the calling thread has IPv6.
func hasIPv6() bool {
	_, err := os.Stat(ownProc + "/if_inet6")
	return err == nil
}

// hasTables reports whether a family has any table of the flavour. Asking makes none.
func (b *Backend) hasTables(family uint32) (bool, error) {
	if b.flavour == Legacy {
		return len(legacyTables(ownProc, family)) > 0, nil
	}
	return haveTable(family, "raw", "mangle", "nat", "filter", "security")
}

// held returns a snapshot if there is anything of ours. ok is false if there is nothing, or nothing that can be known.
func (b *Backend) held(ctx context.Context, ns *netns.NS, counters bool) (have snapshot, ok bool, err error) {
	possible, err := b.possible(ns)
	if err != nil || !possible {
		return nil, false, err
	}
	have, err = b.read(ctx, ns, counters)
	return have, !have.empty(), err
}

// possible reports, without a process, whether there may be anything of ours. For the nft flavour the answer is certain.
func (b *Backend) possible(ns *netns.NS) (possible bool, err error) {
	err = ns.Inside(func() error {
		if b.flavour == Legacy {
			// Without the programs, tables cannot be read, and do not count as ours.
			possible = b.missing == nil && len(legacyTables(ownProc, iptables.IPv4, iptables.IPv6)) > 0
			return nil
		}
		for family := range families() {
			for _, table := range ownTables() {
				chains, err := kernelChains(family, table, append(iptables.RestoreChainNames(), madeTable)...)
				if err != nil {
					return err
				}
				possible = possible || len(chains) > 0
			}
		}
		return nil
	})
	return possible, err
}
