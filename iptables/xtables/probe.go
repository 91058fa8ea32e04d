package xtables

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// Probe returns an error if the programs or the kernel do not accept a rule set. It tries in a namespace made for the purpose: what is
// read back must be what was written. It returns the programs' version.
func (b *Backend) Probe(ctx context.Context, sample iptables.Ruleset) (version string, err error) {
	if b.programs.missing != nil {
		return "", fmt.Errorf("probe iptables: %w", b.programs.missing)
	}
	ns, err := netns.New()
	if err != nil {
		return "", fmt.Errorf("probe iptables: %w", err)
	}
	defer ns.Close() //nolint:errcheck // nothing was written that could be lost
	if _, err := b.Apply(ctx, ns, sample); err != nil {
		hint := ""
		if b.programs.flavour == Legacy {
			hint = " (the legacy flavour needs the capability NET_RAW)"
		}
		return "", fmt.Errorf("probe iptables: the rules are refused%s: %w", hint, err)
	}
	drift, err := b.Verify(ctx, ns, sample)
	if err == nil && len(drift) > 0 {
		err = fmt.Errorf("iptables prints other rules than it was given:\n%s", drift)
	}
	for _, family := range slices.Sorted(maps.Keys(b.programs.tools)) {
		if err == nil {
			version, err = b.programs.tools[family].version()
		}
	}
	if err != nil {
		return version, fmt.Errorf("probe iptables: %w", err)
	}
	return version, nil
}
