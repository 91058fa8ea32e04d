// Command bench measures what applying a pod's rules in its namespace costs, compared with how others do it and with the least transaction,
// what the rules cost packets, and what a call of the CNI plugin costs: in one run and in turn, so that the ratios hold on a noisy machine.
// It writes rows for people and, with -json, for machines.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/iptables/xtables"
)

func main() {
	var b bench
	flag.IntVar(&b.runs, "runs", 40, "how often each way is measured")
	small := flag.Bool("small", false, "measure each part once with small sizes: the figures say nothing, but the parts work")
	flag.StringVar(&b.programs.plugin, "plugin", "", "the CNI plugin's binary, to measure its calls")
	flag.StringVar(&b.programs.empty, "empty", "", "the binary of a program that does nothing (./empty), to compare the CNI plugin with")
	out := flag.String("json", "", "file to write the rows to")
	parts := flag.String("parts", "apply,steps,packets,cni", "what is measured")
	flag.Parse()
	b.traffic, b.cidrs = traffic{rounds: 101, connections: 100, requests: 400}, 20000
	if *small {
		b.runs, b.traffic, b.cidrs = 1, traffic{rounds: 1, connections: 10, requests: 10}, 100
	}
	if err := run(context.Background(), b, strings.Split(*parts, ","), *out); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// bench is what all measurements share.
type bench struct {
	runs, cidrs     int
	traffic         traffic
	programs        programs
	netlink, legacy backend
}

// few is how often what takes long is measured.
func (b bench) few() int { return min(b.runs, max(3, b.runs/10)) }

// backend is ours, of either kind.
type backend interface {
	Apply(ctx context.Context, netns string, want iptables.Ruleset) (iptables.Outcome, error)
}

// agentBackend is the backend of the agent, with its memory.
type agentBackend struct{ kernel.Backend }

func (b agentBackend) Apply(ctx context.Context, path string, want iptables.Ruleset) (iptables.Outcome, error) {
	return b.Backend.Apply(ctx, podnet.Place{Path: path}, want)
}

// plainBackend is the iptables backend without the agent's memory.
type plainBackend struct {
	*xtables.Backend
	guard netns.Guard
}

func (b plainBackend) Apply(ctx context.Context, path string, want iptables.Ruleset) (out iptables.Outcome, err error) {
	ns, err := b.guard.Open(path)
	if err != nil {
		return out, err
	}
	out, err = b.Backend.Apply(ctx, ns, want)
	return out, errors.Join(err, ns.Close())
}

func run(ctx context.Context, b bench, parts []string, out string) error {
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
	b.netlink, b.legacy = agentBackend{choice.Nftables(ctx)}, plainBackend{xtables.New(ctx, xtables.Config{Flavour: xtables.NFT}), guard}
	known := map[string]func(context.Context) ([]row, error){"apply": b.apply, "steps": b.steps, "packets": b.packets, "cni": b.cni}
	var rows []row
	for _, name := range parts {
		part, ok := known[name]
		if !ok {
			return fmt.Errorf("-parts: there is no part %q", name)
		}
		more, err := part(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		rows = append(rows, more...)
	}
	return write(rows, out)
}
