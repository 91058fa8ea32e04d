// Command bench measures the product beside a reference, in one run and in turn, so that the ratios hold on a noisy machine: what a pod's rules cost
// to apply and cost packets, and, in the package scale, what a full node and a large cluster cost. It writes rows for people and, with -json, for
// machines. A row above its bound fails the run. hack/bench.sh starts it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"istio-pod-network-controller/hack/bench/scale"
	"istio-pod-network-controller/hack/bench/table"
)

// bench is what the measurements of one pod share.
type bench struct {
	runs, cidrs int
	traffic     traffic
}

// part is something that is measured.
type part = func(ctx context.Context) ([]table.Row, error)

func main() {
	b := bench{runs: 40, cidrs: 20000, traffic: traffic{rounds: 101, connections: 100, requests: 400}}
	s := scale.Whole()
	s.Flags(flag.CommandLine)
	small := flag.Bool("small", false, "measure each part once with small sizes and without rests: the figures say nothing, but the parts work")
	parts := flag.String("parts", "", "what is measured, of "+strings.Join(order(), ","))
	out := flag.String("json", "", "file to add the rows to")
	flag.Parse()
	if *small {
		b.runs, b.cidrs, b.traffic = 1, 100, traffic{rounds: 1, connections: 10, requests: 10}
		s.Shrink()
	}
	known := map[string]part{"steps": b.steps, "packets": b.packets, "burst": s.Burst, "node": s.Node, "proxies": s.Proxies, "hollow": s.Hollow}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	rows, err := run(ctx, known, strings.Split(*parts, ","))
	cancel()
	if !*small {
		err = errors.Join(err, table.Missed(rows))
	}
	err = errors.Join(err, table.Print(os.Stdout, rows))
	if *out != "" {
		err = errors.Join(err, table.Add(*out, rows)) // what was measured before a failure, too
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// order is that in which parts are measured.
func order() []string {
	return []string{"steps", "packets", "burst", "node", "proxies", "hollow"}
}

func run(ctx context.Context, known map[string]part, parts []string) (rows []table.Row, err error) {
	for _, name := range parts {
		if known[name] == nil {
			return nil, fmt.Errorf("-parts: there is no part %q: want %q", name, order())
		}
	}
	for _, name := range order() {
		if !slices.Contains(parts, name) {
			continue
		}
		fmt.Fprintln(os.Stderr, "measuring:", name)
		more, err := known[name](ctx)
		rows = append(rows, more...)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", name, err)
		}
	}
	return rows, nil
}
