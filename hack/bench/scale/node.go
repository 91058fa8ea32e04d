package scale

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/hack/bench/table"
	"istio-pod-network-controller/test/standins/runtimestandin"
)

const (
	measured   = "node-0" // the node with the real agent
	otherNodes = 500
	// settled is how long an agent runs before it is measured, and window how long it is.
	settled = 15 * time.Second
	window  = 40 * time.Second
	// interval is the time between two looks at a pod.
	interval = 10 * time.Second
)

// node is one node of the cluster, with the real agent.
type node struct {
	*Bench
	server     *server
	runtime    *runtimestandin.Runtime
	kubelets   *kubelets // nil: pods come from the API server
	namespaces int       // of the cluster
	made       int       // pods of the cluster so far
}

// onNode calls f with a node of a cluster with so many namespaces, whose pods come from the API server or from its kubelet.
func (b *Bench) onNode(ctx context.Context, namespaces int, fromKubelet bool, f func(n *node) ([]table.Row, error)) ([]table.Row, error) {
	return inDirectory(func(dir string) (rows []table.Row, err error) {
		s, err := startServer(ctx, dir)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, s.stop()) }()
		r, err := runtimestandin.New(dir)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, r.Stop()) }()
		if err := makeNamespaces(ctx, s.admin, namespaces); err != nil {
			return nil, err
		}
		n := &node{Bench: b, server: s, runtime: r, namespaces: namespaces}
		n.kubelets, err = serveKubelets(ctx, fromKubelet, s.admin, dir, 1)
		defer n.kubelets.end()
		if err != nil {
			return nil, err
		}
		return f(n)
	})
}

// Node measures a full node in a large cluster: the pods' rules are applied once, and reported. The agent is started again beside them: what it asks
// for, writes, takes and holds. It is started once more without looks, which shows what these cost.
func (b *Bench) Node(ctx context.Context) ([]table.Row, error) {
	return bySource(func(fromKubelet bool) ([]table.Row, error) { return b.node(ctx, fromKubelet) })
}

func (b *Bench) node(ctx context.Context, fromKubelet bool) ([]table.Row, error) {
	return b.onNode(ctx, b.namespaces, fromKubelet, func(n *node) ([]table.Row, error) {
		if err := n.fill(ctx, n.here); err != nil {
			return nil, err
		}
		if err := n.program(ctx); err != nil {
			return nil, err
		}
		elsewhere := func(i int) string { return nodeName(1 + i%otherNodes) }
		if _, err := makePods(ctx, n.server.admin, n.made, n.pods-n.made, n.namespaces, elsewhere); err != nil {
			return nil, err
		}
		looking, err := n.restart(ctx, interval)
		if err != nil {
			return nil, err
		}
		idle, err := n.restart(ctx, 0)
		if err != nil {
			return nil, err
		}
		return n.rows(looking, idle), nil
	})
}

// fill makes the node's own pods and their sandboxes.
func (n *node) fill(ctx context.Context, pods int, change ...func(*corev1.Pod)) error {
	made, err := makePods(ctx, n.server.admin, 0, pods, n.namespaces, func(int) string { return measured }, change...)
	if err != nil {
		return err
	}
	n.made = len(made)
	return each(ctx, len(made), func(ctx context.Context, i int) error {
		if err := n.server.setStatus(ctx, running(made[i], i)); err != nil {
			return err
		}
		return n.runtime.Add(made[i])
	})
}

// program has an agent apply the rules of the node's pods, and report.
func (n *node) program(ctx context.Context) error {
	a, err := n.startAgent(ctx)
	if err != nil {
		return err
	}
	return errors.Join(a.awaitProgrammed(ctx, n.made), n.awaitReports(ctx), a.stop())
}

// awaitReports waits until each of the node's pods has the agent's report.
func (n *node) awaitReports(ctx context.Context) error {
	return eventually(ctx, time.Minute, "all pods have a report", func(ctx context.Context) error {
		pods, err := n.server.admin.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + measured, ResourceVersion: "0"})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			if pods.Items[i].Annotations["pod-network-controller.istio.io/status"] != "initialized" {
				return fmt.Errorf("%s has none", pods.Items[i].Name)
			}
		}
		return nil
	})
}

// restarted is what was seen of an agent that starts beside programmed pods.
type restarted struct {
	usage
	ready                  time.Duration
	requests, writes, load float64
	changed                int
}

// restart starts an agent that looks at each pod once an interval, and measures it when it is calm.
func (n *node) restart(ctx context.Context, every time.Duration) (seen restarted, err error) {
	before, err := n.runtime.Fingerprints(ctx)
	if err != nil {
		return seen, err
	}
	a, err := n.startAgent(ctx, "--verify-interval="+every.String())
	if err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	seen.ready = a.ready
	if err := a.awaitProgrammed(ctx, n.here); err != nil {
		return seen, err
	}
	if err := n.settle(ctx, settled); err != nil {
		return seen, err
	}
	m, err := a.metrics(ctx)
	if err != nil {
		return seen, err
	}
	seen.requests, seen.writes = m.requests(), m.writes()
	calm, err := a.usage()
	if err = errors.Join(err, n.settle(ctx, window)); err != nil {
		return seen, err
	}
	if seen.usage, err = a.usage(); err != nil {
		return seen, err
	}
	seen.load = seen.usage.load(calm)
	after, err := n.runtime.Fingerprints(ctx)
	for id, was := range before {
		if after[id] != was {
			seen.changed++
		}
	}
	return seen, err
}

func (n *node) rows(looking, idle restarted) []table.Row {
	of := fmt.Sprintf("%d sandboxes in a cluster of %d pods and %d namespaces", n.here, n.pods, n.namespaces)
	looks := window.Seconds() / interval.Seconds() * float64(n.here)
	each := 10 * (looking.load - idle.load) * window.Seconds() / looks
	return []table.Row{
		table.New("RSS of the agent with "+of, "MiB", looking.rss, 0).To("< 50"),
		table.New("of that not backed by the program's file", "MiB", looking.anon, 0),
		table.New("restart with "+of+": from start to ready", "s", looking.ready.Seconds(), 0).To("< 1"),
		table.New("restart with "+of+": sandboxes whose rules were rewritten", "count", float64(looking.changed), 0).To("0"),
		table.New("restart with "+of+": requests to the API server", "count", looking.requests, 0),
		table.New("restart with "+of+": writes to the API server", "count", looking.writes, 0).To("0"),
		table.New(fmt.Sprintf("CPU with %s, each compared every %s, against never", of, interval), "% of a core", looking.load, idle.load).To("< 0.5"),
		table.New("CPU for comparing one sandbox with what it should be", "ms", each, 0).To("< 0.2"),
	}
}
