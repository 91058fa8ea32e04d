package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// maxReferences bounds the number of rule sets that are kept: some hundred bytes each.
const maxReferences = 1024

// reference is what this kernel returns for a table that holds exactly one of our rule sets. It is read from the kernel, in a namespace
// made for the purpose: what the kernel adds to our messages, and in which order, differs from version to version.
type reference struct {
	outline outline // sets by name without the generation
	content content
}

// references holds the references learnt so far, by the hash of the rule set.
type references struct {
	mu    sync.Mutex
	known map[uint64]reference
}

func newReferences() *references { return &references{known: map[uint64]reference{}} }

func (r *references) get(hash uint64) (reference, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ref, ok := r.known[hash]
	return ref, ok
}

func (r *references) put(hash uint64, ref reference) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= maxReferences {
		clear(r.known)
	}
	r.known[hash] = ref
}

// of returns the reference of want, whose hash is given.
func (r *references) of(ctx context.Context, want iptables.Ruleset, hash uint64) (reference, error) {
	if ref, ok := r.get(hash); ok {
		return ref, nil
	}
	ref, err := learn(ctx, want)
	if err != nil {
		return ref, fmt.Errorf("read how the kernel returns these rules: %w", err)
	}
	r.put(hash, ref)
	return ref, nil
}

func learn(ctx context.Context, want iptables.Ruleset) (ref reference, err error) {
	ns, err := netns.New()
	if err != nil {
		return ref, err
	}
	defer ns.Close() //nolint:errcheck // nothing was written that could be lost
	fresh, err := create(want)
	if err != nil {
		return ref, err
	}
	if err := replace(ctx, ns, false, fresh); err != nil {
		return ref, err
	}
	s, err := dial(ns)
	if err != nil {
		return ref, err
	}
	o, err := s.outline(ctx)
	if err != nil {
		return ref, err
	}
	if o.foreign || len(o.chains) != len(want.Chains) {
		return ref, errors.New("the kernel does not return all of them")
	}
	content, err := s.content(ctx, o, nil)
	o.sets = o.baseNames()
	return reference{outline: o, content: content}, err
}

// baseNames returns the sets by name without the generation.
func (o outline) baseNames() map[string]string {
	out := map[string]string{}
	for name, set := range o.sets {
		out[baseName(name)] = set
	}
	return out
}

// differences returns how the content of our table differs from ref. The outlines must be equal.
func (s *socket) differences(ctx context.Context, have outline, ref reference) (iptables.Drift, error) {
	var c content
	err := rawnetlink.Uninterrupted(func() (err error) {
		c, err = s.content(ctx, have, &ref.content)
		return err
	})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return iptables.Drift{{Kind: iptables.KindRules, Text: fmt.Sprintf("+ content that cannot be read: %v", err)}}, nil
	}
	chains := tallies(iptables.KindRules, "chain", c.chains, ref.content.chains)
	return append(chains, tallies(iptables.KindSets, "set", c.sets, ref.content.sets)...), nil
}

// differences compares outlines. The set names of ref have no generation.
func (o outline) differences(ref outline) iptables.Drift {
	if !o.exists() {
		return iptables.Drift{{Kind: iptables.KindAbsent, Text: "- table inet " + iptables.TableName}}
	}
	d := differing(iptables.KindTable, "table", map[string]string{iptables.TableName: o.table}, map[string]string{iptables.TableName: ref.table})
	d = append(d, differing(iptables.KindTable, "chain", o.chains, ref.chains)...)
	d = append(d, differing(iptables.KindSets, "set", o.baseNames(), ref.sets)...)
	if _, ok := o.generation(); !ok || len(o.sets) > len(ref.sets) {
		d = append(d, iptables.Difference{Kind: iptables.KindSets, Text: "+ sets of more than one generation"})
	}
	if o.foreign {
		d = append(d, iptables.Difference{Kind: iptables.KindTable, Text: "+ chains, sets, objects or flowtables that are not ours"})
	}
	return d
}

// differing compares tables, chains or sets, as noun says, by their names.
func differing(kind iptables.Kind, noun string, have, want map[string]string) (d iptables.Drift) {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		switch h, ok := have[name]; {
		case !ok:
			d = append(d, iptables.Difference{Kind: kind, Text: fmt.Sprintf("- %s %s", noun, name)})
		case h != want[name]:
			d = append(d, attrDifferences(kind, noun, name, h, want[name])...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if _, ok := want[name]; !ok {
			d = append(d, iptables.Difference{Kind: kind, Text: fmt.Sprintf("+ %s %s", noun, printable(name))})
		}
	}
	return d
}

func tallies(kind iptables.Kind, noun string, have, want map[string]tally) (d iptables.Drift) {
	names := map[string]bool{}
	for _, m := range []map[string]tally{have, want} {
		for name := range m {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if have[name] != want[name] {
			text := fmt.Sprintf("+ %s %s holds something else (%d entries, want %d)", noun, printable(name), have[name].count, want[name].count)
			d = append(d, iptables.Difference{Kind: kind, Text: text})
		}
	}
	return d
}
