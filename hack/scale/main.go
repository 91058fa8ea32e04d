// Command scale measures what the agent costs a large cluster and a full node: against a real API server, with the real agent, a
// container runtime that only has network namespaces, and, for many nodes, agents without a kernel in one process. It writes rows for
// people and, with -json, for machines. A row above its bound fails the run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/log"
	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
)

func main() {
	var b bench
	flag.StringVar(&b.programs, "programs", os.Getenv("KUBEBUILDER_ASSETS"), "the directory of etcd and kube-apiserver")
	flag.StringVar(&b.agent, "agent", "", "the agent's binary")
	flag.StringVar(&b.profiles, "profiles", "", "a directory for profiles of the agent; empty for none")
	flag.IntVar(&b.pods, "pods", 10000, "pods of the cluster")
	flag.IntVar(&b.namespaces, "namespaces", 1000, "namespaces of the cluster")
	flag.IntVar(&b.here, "here", 250, "pods of the measured node")
	flag.IntVar(&b.agents, "agents", 500, "hollow agents")
	flag.IntVar(&b.proxies, "proxies", 200, "proxies of the proxy manager")
	flag.StringVar(&b.reference, "reference", "", "another agent's binary, which the part reference compares with the agent, both without --sidecars")
	flag.StringVar(&b.istio, "istio", "", "a directory with istio-cni and pilot-agent, which the parts peers and faults compare the agent with")
	flag.IntVar(&b.crowd, "burst", 100, "pods that start at once")
	flag.BoolVar(&b.small, "small", false, "measure once with small sizes and without rests: the figures say nothing, but the parts work")
	parts := flag.String("parts", "node,listening,burst,sidecars,rollout,hollow", "what is measured")
	out := flag.String("json", "", "file to add the rows to")
	flag.Parse()
	if b.small {
		b.pods, b.namespaces, b.here, b.agents, b.proxies, b.crowd = 20, 3, 4, 2, 2, 3
	}
	ctrl.SetLogger(logr.Discard())
	_ = log.SetLevel("error") // NRI's
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, b, strings.Split(*parts, ","), *out); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to be cancelled
	}
}

// bench is what all measurements share.
type bench struct {
	programs, agent, profiles, reference, istio    string
	pods, namespaces, here, agents, proxies, crowd int
	small                                          bool
}

// settle lets the measured programs come to rest, or runs them for as long as they are measured.
func (b bench) settle(ctx context.Context, d time.Duration) error {
	if b.small {
		d = min(d, 200*time.Millisecond)
	}
	return pause(ctx, d)
}

// collections is how many of Go's collections are made to see what the agent has in use.
func (b bench) collections() int {
	if b.small {
		return 1
	}
	return 6
}

func run(ctx context.Context, b bench, parts []string, out string) error {
	if err := alone(); err != nil {
		return err
	}
	known := map[string]func(context.Context, string) ([]row, error){
		"burst": b.burst, "node": b.node, "listening": b.listening, "sidecars": b.sidecars, "rollout": b.rollout, "reference": b.against, "hollow": b.hollow,
		"peers": b.peers, "faults": b.faults,
	}
	var rows []row
	var failed error
	for _, name := range []string{"burst", "node", "listening", "sidecars", "rollout", "reference", "hollow", "peers", "faults"} {
		if !slices.Contains(parts, name) {
			continue
		}
		fmt.Fprintln(os.Stderr, "measuring:", name)
		more, err := inDirectory(name, func(dir string) ([]row, error) { return known[name](ctx, dir) })
		rows = append(rows, more...)
		if err != nil {
			failed = fmt.Errorf("%s: %w", name, err)
			break
		}
	}
	if !b.small {
		failed = errors.Join(failed, missed(rows))
	}
	if err := printRows(os.Stdout, rows); err != nil || out == "" {
		return errors.Join(failed, err)
	}
	return errors.Join(failed, addRows(out, rows)) // what was measured before a failure, too
}

// inDirectory calls f with a directory that is removed afterwards. If f fails, the ends of the logs in it are part of the error.
func inDirectory(name string, f func(dir string) ([]row, error)) (rows []row, err error) {
	dir, err := os.MkdirTemp("", "scale-"+name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if rows, err = f(dir); err != nil {
		logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
		ofNodes, _ := filepath.Glob(filepath.Join(dir, "*", "*.log"))
		for _, file := range append(logs, ofNodes...) {
			text, _ := os.ReadFile(file)
			err = fmt.Errorf("%w\n%s said at the end:\n%s", err, filepath.Base(file), text[max(0, len(text)-2000):])
		}
	}
	return rows, err
}
