// Package scale measures what the agent costs a large cluster and a full node: against a real API server, with the real agent, a container runtime that
// only has network namespaces, and, for many nodes, agents without a kernel in this process.
package scale

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/log"
	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"istio-pod-network-controller/hack/bench/table"
)

// Bench is what all measurements share.
type Bench struct {
	agent                                          string
	pods, namespaces, here, agents, proxies, crowd int
	small                                          bool
}

// Whole returns a bench of a full node and a large cluster.
func Whole() *Bench {
	return &Bench{pods: 10000, namespaces: 1000, here: 250, agents: 500, proxies: 200, crowd: 100}
}

// Flags adds flags for the programs and the sizes.
func (b *Bench) Flags(to *flag.FlagSet) {
	to.StringVar(&b.agent, "agent", "", "the agent's binary")
	to.IntVar(&b.pods, "pods", b.pods, "pods of the cluster")
	to.IntVar(&b.agents, "agents", b.agents, "hollow agents")
	to.IntVar(&b.proxies, "proxies", b.proxies, "proxies of the proxy manager")
}

// Shrink makes the bench so small that its figures say nothing.
func (b *Bench) Shrink() {
	*b = Bench{agent: b.agent, pods: 20, namespaces: 3, here: 4, agents: 2, proxies: 2, crowd: 3, small: true}
}

// settle lets the measured programs come to rest, or runs them for as long as they are measured.
func (b *Bench) settle(ctx context.Context, d time.Duration) error {
	if b.small {
		d = min(d, 200*time.Millisecond)
	}
	return pause(ctx, d)
}

// inDirectory calls f with a directory that is removed afterwards. If f fails, the ends of the logs in it are part of the error.
func inDirectory(f func(dir string) ([]table.Row, error)) (rows []table.Row, err error) {
	if os.Getpid() != 1 { // of a PID namespace, with mounts of its own: what is left of it ends with it
		return nil, errors.New("not in namespaces of its own: start this by `hack/bench.sh scale`")
	}
	ctrl.SetLogger(logr.Discard())
	_ = log.SetLevel("error") // NRI's
	dir, err := os.MkdirTemp("", "scale")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if rows, err = f(dir); err != nil {
		logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
		for _, file := range logs {
			text, _ := os.ReadFile(file)
			err = fmt.Errorf("%w\n%s said at the end:\n%s", err, filepath.Base(file), text[max(0, len(text)-2000):])
		}
	}
	return rows, err
}
