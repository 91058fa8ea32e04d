package xtables

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"sync"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/foreign"
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
	if b.programs.missing != nil {
		return nil, b.programs.missing
	}
	var mu sync.Mutex
	out := snapshot{}
	err := eachFamily(ns, func(family uint32) error {
		saved, err := b.programs.save(ctx, family, counters)
		mu.Lock()
		defer mu.Unlock()
		out[family] = parse(saved)
		return err
	})
	return out, err
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

// hasIPv6 reports whether the namespace of the calling thread has IPv6.
func hasIPv6() bool {
	_, err := os.Stat(ownProc + "/if_inet6")
	return err == nil
}

// held returns a snapshot if there is anything of ours. ok is false if there is nothing, which takes no process to find out.
func (b *Backend) held(ctx context.Context, ns *netns.NS, counters bool) (have snapshot, ok bool, err error) {
	err = ns.Inside(func() (err error) {
		if b.programs.flavour == NFT {
			found, err := readChains()
			ok = len(found) > 0
			return err
		}
		// Without the programs, tables cannot be read, and do not count as ours.
		ok = b.programs.missing == nil && foreign.LegacyHolds(iptables.RestoreChainNames())
		return nil
	})
	if err != nil || !ok {
		return nil, false, err
	}
	have, err = b.read(ctx, ns, counters)
	return have, !have.empty(), err
}
