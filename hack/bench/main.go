// Command bench measures what applying a pod's rules in its namespace costs, compared with how others do it, what the
// rules cost packets, and what a call of the CNI plugin costs: in one run and in turn, so that the ratios hold on a noisy
// machine. It writes rows for people and, with -json, for machines.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/iptables/xtables"
)

func main() {
	var b bench
	flag.IntVar(&b.runs, "runs", 40, "how often each way is measured")
	flag.StringVar(&b.programs.plugin, "plugin", "", "the CNI plugin's binary, to measure its calls")
	flag.StringVar(&b.programs.empty, "empty", "", "the binary of a program that does nothing (./empty), to compare the CNI plugin with")
	out := flag.String("json", "", "file to write the rows to")
	flag.Parse()
	if err := run(context.Background(), b, *out); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// bench is what all measurements share.
type bench struct {
	runs            int
	programs        programs
	netlink, legacy backend
}

// backend is ours, of either kind.
type backend interface {
	Apply(ctx context.Context, netns string, want iptables.Ruleset) (iptables.Outcome, error)
}

// agentBackend is the backend of the agent, with its memory.
type agentBackend struct{ kernel.Backend }

func (b agentBackend) Apply(ctx context.Context, path string, want iptables.Ruleset) (iptables.Outcome, error) {
	return b.Backend.Apply(ctx, podnet.Place{Path: path}, want)
}

func run(ctx context.Context, b bench, out string) error {
	if err := b.programs.validate(); err != nil {
		return err
	}
	guard, err := netns.NewGuard()
	if err != nil {
		return err
	}
	choice, err := kernel.NewChoice(nil, nil)
	if err != nil {
		return err
	}
	b.netlink, b.legacy = agentBackend{choice.Nftables(ctx)}, xtables.New(ctx, xtables.Config{Guard: guard, Flavour: xtables.NFT})
	var rows []row
	// Processes first: a child of any other measurement would be counted, too.
	for _, part := range []func(context.Context) ([]row, error){b.processes, b.defaults, b.full, b.growth, b.packets, b.cni} {
		more, err := part(ctx)
		if err != nil {
			return err
		}
		rows = append(rows, more...)
	}
	return write(rows, out)
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
	return []row{{"processes started by applies over netlink, seen by their page faults", "count", children, 0, "0"}}, err
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
		{"one by one", func(_ context.Context, ns *netns.NS) error { return oneByOne(ns, rules) }, max(3, b.runs/10)},
	})
	if err != nil {
		return nil, err
	}
	idle, err := unchanged(ctx, b.netlink, rules, b.runs)
	ours := took["netlink"]
	return []row{
		{"apply default rules, netlink against two iptables-restore", "ms p50", ours.p50(), took["restore"].p50(), "<= 0.2"},
		{"apply default rules, netlink against go-iptables rule by rule", "ms p50", ours.p50(), took["one by one"].p50(), "<= 0.033"},
		{"CPU time of default rules, netlink against two iptables-restore", "ms a pod", ours.cpuEach(), took["restore"].cpuEach(), "reported"},
		{"find that the rules are there, against applying them", "ms p50", idle, ours.p50(), "reported"},
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
		{"one by one", func(_ context.Context, ns *netns.NS) error { return oneByOne(ns, rules) }, 3},
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
		{"apply the full set, netlink against the iptables backend", "ms p50", ours.p50(), theirs.p50(), "<= 0.2"},
		{"apply the full set, netlink against go-iptables rule by rule", "ms p50", ours.p50(), slowest.p50(), "<= 0.025"},
		{"CPU time of the full set, netlink against the iptables backend", "ms a pod", ours.cpuEach(), theirs.cpuEach(), "reported"},
		{"CPU time of the full set, netlink against go-iptables rule by rule", "ms a pod", ours.cpuEach(), slowest.cpuEach(), "reported"},
		{"find that the full set is there, against applying it", "ms p50", idle, ours.p50(), "< 0.25"},
		{"find that the full set is there by the iptables backend, against applying it", "ms p50", idleIptables, theirs.p50(), "reported"},
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
		by("few", b.netlink, short, b.runs), by("many", b.netlink, long, b.runs), by("many by iptables", b.legacy, long, max(3, b.runs/10)),
	})
	if err != nil {
		return nil, err
	}
	each := func(way string, n float64) float64 { return took[way].p50() * 1000 / n }
	return []row{
		{"time for each of 1,000 CIDRs, against each of 20", "us p50", each("many", many), each("few", few), "< 1"},
		{"apply 1,000 CIDRs, netlink against the iptables backend", "ms p50", took["many"].p50(), took["many by iptables"].p50(), "reported"},
	}, nil
}
