package main

import (
	"context"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// apply compares how rules come into a fresh namespace: by us, and as others do it.
func (b bench) apply(ctx context.Context) (rows []row, err error) {
	// Processes first: a child of any other measurement would be counted, too.
	for _, part := range []func(context.Context) ([]row, error){b.processes, b.defaults, b.full, b.growth} {
		more, err := part(ctx)
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// processes counts what our applies start.
func (b bench) processes(ctx context.Context) ([]row, error) {
	for _, spec := range []iptables.Spec{iptables.DefaultSpec(), fullSpec()} {
		rules, err := iptables.Rules(spec)
		if err != nil {
			return nil, err
		}
		if _, err := inTurn(ctx, []way{by("netlink", b.netlink, rules, b.runs)}); err != nil {
			return nil, err
		}
	}
	children, err := childFaults()
	return []row{newRow("processes started by applies over netlink, seen by their page faults", "count", children, 0, "0")}, err
}

// defaults compares for a pod that says nothing of its traffic.
func (b bench) defaults(ctx context.Context) ([]row, error) {
	rules, err := iptables.Rules(iptables.DefaultSpec())
	if err != nil {
		return nil, err
	}
	took, err := inTurn(ctx, []way{
		by("netlink", b.netlink, rules, b.runs),
		{"restore", func(ctx context.Context, ns *netns.NS) error { return restore(ctx, ns, rules) }, b.runs},
		{"one by one", func(_ context.Context, ns *netns.NS) error { return oneByOne(ns, rules) }, b.few()},
	})
	if err != nil {
		return nil, err
	}
	idle, err := unchanged(ctx, b.netlink, rules, b.runs)
	ours := took["netlink"]
	return []row{
		newRow("apply default rules, netlink against two iptables-restore", "ms p50", ours.p50(), took["restore"].p50(), "<= 0.2"),
		newRow("apply default rules, netlink against go-iptables rule by rule", "ms p50", ours.p50(), took["one by one"].p50(), "<= 0.033"),
		newRow("CPU time of default rules, netlink against two iptables-restore", "ms a pod", ours.cpuEach(), took["restore"].cpuEach(), "reported"),
		newRow("find that the rules are there, against applying them", "ms p50", idle, ours.p50(), "reported"),
	}, err
}

// full compares for a pod that asks for everything.
func (b bench) full(ctx context.Context) ([]row, error) {
	rules, err := iptables.Rules(fullSpec())
	if err != nil {
		return nil, err
	}
	took, err := inTurn(ctx, []way{
		by("netlink", b.netlink, rules, b.runs),
		by("iptables", b.legacy, rules, b.runs),
		{"one by one", func(_ context.Context, ns *netns.NS) error { return oneByOne(ns, rules) }, b.few()},
	})
	if err != nil {
		return nil, err
	}
	idle, err := unchanged(ctx, b.netlink, rules, b.runs)
	if err != nil {
		return nil, err
	}
	idleIptables, err := unchanged(ctx, b.legacy, rules, b.runs)
	ours, theirs, slowest := took["netlink"], took["iptables"], took["one by one"]
	return []row{
		newRow("apply the full set, netlink against the iptables backend", "ms p50", ours.p50(), theirs.p50(), "<= 0.2"),
		newRow("apply the full set, netlink against go-iptables rule by rule", "ms p50", ours.p50(), slowest.p50(), "<= 0.025"),
		newRow("CPU time of the full set, netlink against the iptables backend", "ms a pod", ours.cpuEach(), theirs.cpuEach(), "reported"),
		newRow("CPU time of the full set, netlink against go-iptables rule by rule", "ms a pod", ours.cpuEach(), slowest.cpuEach(), "reported"),
		newRow("find that the full set is there, against applying it", "ms p50", idle, ours.p50(), "< 0.25"),
		newRow("find that the full set is there by the iptables backend, against applying it", "ms p50", idleIptables, theirs.p50(), "reported"),
	}, err
}

// growth compares a long list with a short one.
func (b bench) growth(ctx context.Context) ([]row, error) {
	const few, many = 20, 1000
	short, err := iptables.Rules(excluding(few))
	if err != nil {
		return nil, err
	}
	long, err := iptables.Rules(excluding(many))
	if err != nil {
		return nil, err
	}
	took, err := inTurn(ctx, []way{
		by("few", b.netlink, short, b.runs), by("many", b.netlink, long, b.runs), by("many by iptables", b.legacy, long, b.few()),
	})
	if err != nil {
		return nil, err
	}
	each := func(way string, n float64) float64 { return took[way].p50() * 1000 / n }
	return []row{
		newRow("time for each of 1,000 CIDRs, against each of 20", "us p50", each("many", many), each("few", few), "< 1"),
		newRow("apply 1,000 CIDRs, netlink against the iptables backend", "ms p50", took["many"].p50(), took["many by iptables"].p50(), "reported"),
	}, nil
}
