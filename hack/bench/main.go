// Command bench measures what putting a pod's rules into its namespace costs, beside the ways that others do it, in one
// run and in turn, so that the ratios hold on a noisy machine. It writes rows for people and, with -json, for machines.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/nftables"
)

func main() {
	runs := flag.Int("runs", 40, "how often each way is measured")
	out := flag.String("json", "", "file to write the rows to")
	flag.Parse()
	if err := run(context.Background(), *runs, *out); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// way is one way to put the rules into a fresh namespace.
type way struct {
	name  string
	apply func(ctx context.Context, ns *netns.NS) error
	runs  int
}

func run(ctx context.Context, runs int, out string) error {
	rules, err := iptables.Rules(iptables.DefaultSpec())
	if err != nil {
		return err
	}
	guard, err := netns.NewGuard()
	if err != nil {
		return err
	}
	ours := nftables.New(guard)
	apply := func(ctx context.Context, ns *netns.NS) error {
		_, err := ours.Apply(ctx, ns.Path(), rules)
		return err
	}
	ways := []way{
		{"netlink", apply, runs},
		{"restore", func(ctx context.Context, ns *netns.NS) error { return restore(ctx, ns, rules) }, runs},
		{"one by one", func(_ context.Context, ns *netns.NS) error { return oneByOne(ns, rules) }, max(3, runs/10)},
	}
	took := map[string][]float64{}
	// Ours alone first: a child process of any other way would be counted, too.
	for range runs {
		if err := measure(ctx, ways[0], took); err != nil {
			return err
		}
	}
	children, err := childFaults()
	if err != nil {
		return err
	}
	clear(took)
	for i := range runs {
		for _, w := range ways {
			if i >= w.runs {
				continue
			}
			if err := measure(ctx, w, took); err != nil {
				return err
			}
		}
	}
	idle, err := unchanged(ctx, ours, rules, runs)
	if err != nil {
		return err
	}
	p50 := func(name string) float64 { return median(took[name]) }
	rows := []row{
		{"apply default rules, netlink against two iptables-restore", "ms p50", p50("netlink"), p50("restore"), "<= 0.2"},
		{"apply default rules, netlink against go-iptables rule by rule", "ms p50", p50("netlink"), p50("one by one"), "<= 0.033"},
		{"processes started by applies over netlink, seen by their page faults", "count", children, 0, "0"},
		{"find that the rules are there, against applying them", "ms p50", idle, p50("netlink"), "reported"},
	}
	return write(rows, out)
}

// measure applies the rules to a fresh namespace and keeps the time that took; the namespace itself is not counted.
func measure(ctx context.Context, w way, took map[string][]float64) error {
	ns, err := netns.New()
	if err != nil {
		return err
	}
	defer ns.Close() //nolint:errcheck // it dies with its rules
	start := time.Now()
	if err := w.apply(ctx, ns); err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	took[w.name] = append(took[w.name], milliseconds(time.Since(start)))
	return nil
}

func unchanged(ctx context.Context, b *nftables.Backend, rules iptables.Ruleset, runs int) (float64, error) {
	ns, err := netns.New()
	if err != nil {
		return 0, err
	}
	defer ns.Close() //nolint:errcheck // it dies with its rules
	var took []float64
	for range runs + 1 {
		start := time.Now()
		if _, err := b.Apply(ctx, ns.Path(), rules); err != nil {
			return 0, err
		}
		took = append(took, milliseconds(time.Since(start)))
	}
	return median(took[1:]), nil // the first one had something to do
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
