package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// reference is what this kernel returns for a table that holds exactly one of our rule sets. It is read from the kernel, in a namespace
// made for the purpose: what the kernel adds to our messages, and in which order, differs from version to version.
type reference struct {
	outline outline // sets by name without the generation
	content content
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
	if err := replace(ctx, ns, iptables.TableName, false, fresh); err != nil {
		return ref, err
	}
	o, err := readOutline(ctx, ns)
	if err != nil {
		return ref, err
	}
	if o.foreign || len(o.chains) != len(want.Chains) {
		return ref, errors.New("the kernel does not return all of them")
	}
	content, err := readContent(ctx, ns, o, nil)
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

// contentDrift returns how the content of our table differs from want, whose reference is ref. The outlines must be equal.
func contentDrift(ctx context.Context, ns *netns.NS, have outline, want iptables.Ruleset, ref reference) (iptables.Drift, error) {
	var c content
	err := rawnetlink.Uninterrupted(func() (err error) {
		c, err = readContent(ctx, ns, have, &ref.content)
		return err
	})
	if late := timedOut(ctx, err); late != nil {
		return nil, late
	}
	if err != nil {
		return iptables.Drift{{Kind: iptables.KindRules, Text: fmt.Sprintf("+ content that cannot be read: %v", err)}}, nil
	}
	d := ruleDrift(want, c.chains, ref.content.chains)
	for _, name := range slices.Sorted(maps.Keys(ref.content.sets)) {
		if h, w := c.sets[name], ref.content.sets[name]; h != w {
			text := fmt.Sprintf("+ set %s holds something else (%d entries, want %d)", name, h.count, w.count)
			d = append(d, iptables.Difference{Kind: iptables.KindSets, Text: text})
		}
	}
	return d, nil
}

// ruleDrift names the rules of want that are missing, and where others are instead. have and ref are hashes of the rules of each chain.
func ruleDrift(want iptables.Ruleset, have, ref map[string][]sum) (d iptables.Drift) {
	for _, c := range want.Chains {
		missing, more, head := iptables.Trimmed(ref[c.Name], have[c.Name])
		for _, rule := range c.Rules[head : head+len(missing)] {
			d = append(d, iptables.Difference{Kind: iptables.KindRules, Text: "- " + rule.Text()})
		}
		if len(more) > 0 {
			text := fmt.Sprintf("+ chain %s, rules %d to %d: not ours", c.Name, head+1, head+len(more))
			d = append(d, iptables.Difference{Kind: iptables.KindRules, Text: text})
		}
	}
	return d
}

// differences compares outlines. The set names of ref have no generation.
func (o outline) differences(ref outline) iptables.Drift {
	if !o.exists() {
		return iptables.Drift{{Kind: iptables.KindAbsent, Text: "- table inet " + o.name}}
	}
	d := differing(iptables.KindTable, "table", map[string]string{o.name: o.table}, map[string]string{o.name: ref.table})
	d = append(d, differing(iptables.KindTable, "chain", o.chains, ref.chains)...)
	d = append(d, differing(iptables.KindSets, "set", o.baseNames(), ref.sets)...)
	if _, ok := o.generation(); !ok || len(o.sets) > len(ref.sets) {
		d = append(d, iptables.Difference{Kind: iptables.KindSets, Text: "+ sets of more than one generation"})
	}
	if o.surplus {
		d = append(d, iptables.Difference{Kind: iptables.KindTable, Text: "+ table inet " + iptables.SecondTableName})
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
