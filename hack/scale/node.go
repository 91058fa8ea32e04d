package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	measured   = "node-0" // the node with the real agent
	otherNodes = 500
	smallPods  = 1000 // of the cluster that the large one is compared with
	// settled is how long an agent runs before it is measured, unless a part says otherwise, and window how long it is.
	settled = 15 * time.Second
	window  = 40 * time.Second
	// interval is the time between two looks at a pod.
	interval = 10 * time.Second
)

// nodeBench is one node of the cluster, with the real agent.
type nodeBench struct {
	bench
	server  *server
	runtime *containerRuntime
	made    int // pods of the cluster so far
	// calm is how long an agent runs before it is measured.
	calm time.Duration
}

// node measures a full node in a small and in a large cluster:
//
//   - the pods' rules are applied once, and reported;
//   - the agent is started again beside them, in the small cluster and in the large one: what it asks for, writes, takes and holds;
//   - in the large one also without looks, which shows what the looks cost.
func (b bench) node(ctx context.Context, dir string) (rows []row, err error) {
	n, err := b.newNode(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.runtime.stop(), n.server.stop()) }()
	if err := makeNamespaces(ctx, n.server.admin, b.namespaces); err != nil {
		return nil, err
	}
	if err := n.fill(ctx); err != nil {
		return nil, err
	}
	if err := n.program(ctx); err != nil {
		return nil, err
	}
	if err := n.others(ctx, min(smallPods, b.pods)); err != nil {
		return nil, err
	}
	small, err := n.restart(ctx, interval)
	if err != nil {
		return nil, err
	}
	if err := n.others(ctx, b.pods); err != nil {
		return nil, err
	}
	large, err := n.restart(ctx, interval)
	if err != nil {
		return nil, err
	}
	idle, err := n.restart(ctx, 0)
	if err != nil {
		return nil, err
	}
	return n.rows(small, large, idle), nil
}

func (b bench) newNode(ctx context.Context, dir string) (*nodeBench, error) {
	s, err := startServer(ctx, dir, b.programs)
	if err != nil {
		return nil, err
	}
	r, err := newRuntime(dir)
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return &nodeBench{bench: b, server: s, runtime: r, calm: settled}, nil
}

// fill makes the node's own pods and their sandboxes.
func (n *nodeBench) fill(ctx context.Context, change ...func(*corev1.Pod)) error {
	pods, err := makePods(ctx, n.server.admin, 0, n.here, n.namespaces, func(int) string { return measured }, change...)
	if err != nil {
		return err
	}
	n.made = len(pods)
	return each(ctx, len(pods), func(ctx context.Context, i int) error {
		if err := n.server.setStatus(ctx, running(pods[i], i)); err != nil {
			return err
		}
		_, err := n.runtime.add(pods[i])
		return err
	})
}

// others makes pods of other nodes until the cluster has so many.
func (n *nodeBench) others(ctx context.Context, upTo int) error {
	_, err := makePods(ctx, n.server.admin, n.made, upTo-n.made, n.namespaces, func(i int) string { return fmt.Sprintf("node-%d", 1+i%otherNodes) })
	n.made = max(n.made, upTo)
	return err
}

// program has an agent apply the rules of the node's pods, and report.
func (n *nodeBench) program(ctx context.Context) error {
	a, err := startAgent(ctx, n.server, n.runtime, n.agent)
	if err != nil {
		return err
	}
	err = errors.Join(a.awaitProgrammed(ctx, n.here), n.awaitReports(ctx))
	return errors.Join(err, a.stop(syscall.SIGTERM))
}

// awaitReports waits until each of the node's pods has the agent's report.
func (n *nodeBench) awaitReports(ctx context.Context) error {
	return eventually(ctx, time.Minute, "all pods have a report", func(ctx context.Context) error {
		pods, err := n.server.admin.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + measured, ResourceVersion: "0"})
		if err != nil {
			return err
		}
		if missing := unreported(pods.Items); missing > 0 {
			return fmt.Errorf("%d have none", missing)
		}
		return nil
	})
}

func unreported(pods []corev1.Pod) (n int) {
	for i := range pods {
		if pods[i].Annotations["pod-network-controller.istio.io/status"] != "initialized" {
			n++
		}
	}
	return n
}

// restarted is what was seen of an agent that starts beside programmed pods.
type restarted struct {
	ready, looked            time.Duration
	requests, writes         float64
	lists, statuses, changed int
	rss, anon, load          float64
}

// restart starts an agent that looks at each pod once an interval, and measures it when it is calm.
func (n *nodeBench) restart(ctx context.Context, every time.Duration, flags ...string) (seen restarted, err error) {
	before, err := n.runtime.fingerprints(ctx)
	if err != nil {
		return seen, err
	}
	lists, statuses := n.runtime.lists.Load(), n.runtime.statuses.Load()
	began := time.Now()
	a, err := startAgent(ctx, n.server, n.runtime, n.agent, append(flags, "--verify-interval="+every.String())...)
	if err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, a.stop(syscall.SIGTERM)) }()
	seen.ready = a.ready
	if err := a.awaitProgrammed(ctx, n.here); err != nil {
		return seen, err
	}
	seen.looked = time.Since(began)
	if err := n.settle(ctx, n.calm); err != nil {
		return seen, err
	}
	m, err := a.metrics(ctx)
	if err != nil {
		return seen, err
	}
	seen.requests, seen.writes = m.requests(), m.writes()
	seen.lists, seen.statuses = int(n.runtime.lists.Load()-lists), int(n.runtime.statuses.Load()-statuses)
	if err := n.window(ctx, a, &seen, every); err != nil {
		return seen, err
	}
	after, err := n.runtime.fingerprints(ctx)
	for id, was := range before {
		if after[id] != was {
			seen.changed++
		}
	}
	return seen, err
}

// window measures a calm agent.
func (n *nodeBench) window(ctx context.Context, a *agent, seen *restarted, every time.Duration) error {
	start, err := a.usage()
	if err != nil {
		return err
	}
	if n.profiles != "" && every > 0 {
		if err := a.profile(ctx, "heap", n.profiles+"/heap.pprof"); err != nil {
			return err
		}
		if err := a.profile(ctx, fmt.Sprintf("profile?seconds=%.0f", window.Seconds()), n.profiles+"/looks.pprof"); err != nil {
			return err
		}
	} else if err := n.settle(ctx, window); err != nil {
		return err
	}
	end, err := a.usage()
	seen.rss, seen.anon, seen.load = end.rss, end.anon, end.load(start)
	return err
}

// fingerprints returns, of each sandbox, its nftables with the handles that the kernel gives: whatever is written anew gets others.
func (r *containerRuntime) fingerprints(ctx context.Context) (map[string]string, error) {
	sandboxes := r.all()
	prints := make([]string, len(sandboxes))
	err := each(ctx, len(sandboxes), func(ctx context.Context, i int) error {
		text, err := exec.CommandContext(ctx, "nsenter", "--net="+sandboxes[i].netns, "nft", "--handle", "list", "ruleset").CombinedOutput()
		if err == nil && len(text) == 0 {
			err = errors.New("it has no rules")
		}
		if err != nil {
			return fmt.Errorf("list the rules of sandbox %s: %w: %s", sandboxes[i].id, err, text)
		}
		prints[i] = hexID(string(text))
		return nil
	})
	out := map[string]string{}
	for i, s := range sandboxes {
		out[s.id] = prints[i]
	}
	return out, err
}

func (n *nodeBench) rows(small, large, idle restarted) []row {
	of := fmt.Sprintf("%d sandboxes in a cluster of %d pods and %d namespaces", n.here, n.pods, n.namespaces)
	looks := window.Seconds() / interval.Seconds() * float64(n.here)
	each := 10 * (large.load - idle.load) * window.Seconds() / looks
	return []row{
		newRow(fmt.Sprintf("RSS of the agent with %s, against %d pods", of, smallPods), "MiB", large.rss, small.rss, "< 50, ratio 1"),
		newRow("of that not backed by the program's file", "MiB", large.anon, small.anon, "reported"),
		newRow("restart with "+of+": from start to ready", "s", large.ready.Seconds(), small.ready.Seconds(), "< 1"),
		newRow("restart with "+of+": from start to every sandbox compared", "s", large.looked.Seconds(), small.looked.Seconds(), "reported"),
		newRow("restart with "+of+": sandboxes whose rules were rewritten", "count", float64(large.changed), float64(small.changed), "0"),
		newRow("restart with "+of+": lists of the runtime", "count", float64(large.lists), float64(small.lists), "reported"),
		newRow("restart with "+of+": statuses asked of the runtime", "count", float64(large.statuses), float64(small.statuses), "reported"),
		newRow("restart with "+of+": requests to the API server", "count", large.requests, small.requests, "reported"),
		newRow("restart with "+of+": writes to the API server", "count", large.writes, small.writes, "0"),
		newRow(fmt.Sprintf("CPU with %s, each compared every %s, against never", of, interval), "% of a core", large.load, idle.load, "< 0.5"),
		newRow("CPU for comparing one sandbox with what it should be", "ms", each, 0, "< 0.2"),
	}
}
