package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	burstRounds = 3
	// startsAtOnce is how many sandboxes a node makes at a time; networkTime and containerTime are what each takes beside the agent.
	startsAtOnce  = 8
	networkTime   = 100 * time.Millisecond
	containerTime = 300 * time.Millisecond
)

// burst measures what pods cost the agent that are made at once and deleted at once, for all their life.
func (b bench) burst(ctx context.Context, dir string) (rows []row, err error) {
	n, err := b.newNode(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.runtime.stop(), n.server.stop()) }()
	if err := makeNamespaces(ctx, n.server.admin, 1); err != nil {
		return nil, err
	}
	a, err := startAgent(ctx, n.server, n.runtime, b.agent)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.stop(syscall.SIGTERM)) }()
	var lives []life
	for range burstRounds {
		l, err := n.live(ctx, a)
		if err != nil {
			return nil, err
		}
		lives = append(lives, l)
	}
	if b.profiles != "" {
		if err := n.profiled(ctx, a); err != nil {
			return nil, err
		}
	}
	what := fmt.Sprintf("%d pods at once", b.crowd)
	of := func(f func(life) float64) float64 { return median(lives, f) }
	return []row{
		newRow("CPU of the agent for a pod's start, "+what, "ms", of(func(l life) float64 { return l.startCPU }), 0, "<= 4"),
		newRow("CPU of the agent for a pod's end, "+what, "ms", of(func(l life) float64 { return l.endCPU }), 0, "reported"),
		newRow("API requests for a pod's life, "+what, "count", of(func(l life) float64 { return l.requests }), 0, "reported"),
		newRow("API writes for a pod's life, "+what, "count", of(func(l life) float64 { return l.writes }), 0, "1"),
		newRow("time that the runtime waits for the agent at a pod's start, "+what+", p50", "ms", n.runtime.wait(50), 0, "reported"),
		newRow("time that the runtime waits for the agent at a pod's start, "+what+", p99", "ms", n.runtime.wait(99), 0, "reported"),
		newRow("calls of the runtime for a pod's life, "+what, "count", of(func(l life) float64 { return l.calls }), 0, "reported"),
	}, nil
}

// life is what a pod costs from its creation to its end.
type life struct{ startCPU, endCPU, requests, writes, calls float64 }

func (n *nodeBench) live(ctx context.Context, a *agent) (l life, err error) {
	before, err := a.metrics(ctx)
	if err != nil {
		return l, err
	}
	calls := n.runtime.lists.Load() + n.runtime.statuses.Load()
	start, err := a.cpu()
	if err != nil {
		return l, err
	}
	pods, err := n.startAll(ctx)
	if err != nil {
		return l, err
	}
	middle, err := a.cpu()
	if err != nil {
		return l, err
	}
	if err := n.endAll(ctx, a, pods); err != nil {
		return l, err
	}
	end, err := a.cpu()
	if err != nil {
		return l, err
	}
	after, err := a.metrics(ctx)
	each := float64(n.crowd)
	return life{
		startCPU: milliseconds(middle-start) / each, endCPU: milliseconds(end-middle) / each,
		requests: (after.requests() - before.requests()) / each, writes: (after.writes() - before.writes()) / each,
		calls: float64(n.runtime.lists.Load()+n.runtime.statuses.Load()-calls) / each,
	}, err
}

// startAll starts pods as kubelet and runtime do, and waits until each has the agent's report.
func (n *nodeBench) startAll(ctx context.Context) ([]*corev1.Pod, error) {
	pods := make([]*corev1.Pod, n.crowd)
	free := make(chan struct{}, startsAtOnce)
	group, inner := errgroup.WithContext(ctx)
	for i := range pods {
		group.Go(func() (err error) {
			pods[i], err = n.startPod(inner, n.made+i, free)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	n.made += len(pods)
	return pods, n.awaitReports(ctx)
}

func (n *nodeBench) startPod(ctx context.Context, number int, free chan struct{}) (*corev1.Pod, error) {
	api := n.server.admin.CoreV1().Pods(namespaceName(0))
	pod, err := api.Create(ctx, newPod(fmt.Sprintf("pod-%05d", number), namespaceName(0), measured), metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	if err := n.server.setStatus(ctx, starting(pod)); err != nil {
		return nil, err
	}
	free <- struct{}{}
	defer func() { <-free }()
	if err := pause(ctx, networkTime); err != nil {
		return nil, err
	}
	if err := n.runtime.run(ctx, pod); err != nil {
		return nil, err
	}
	if err := pause(ctx, containerTime); err != nil {
		return nil, err
	}
	return pod, n.server.setStatus(ctx, running(pod, number))
}

// endAll ends pods as kubelet and runtime do, and waits until the agent has forgotten them.
func (n *nodeBench) endAll(ctx context.Context, a *agent, pods []*corev1.Pod) error {
	err := each(ctx, len(pods), func(ctx context.Context, i int) error {
		api := n.server.admin.CoreV1().Pods(pods[i].Namespace)
		if err := api.Delete(ctx, pods[i].Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		if err := n.runtime.end(ctx, pods[i]); err != nil {
			return err
		}
		return api.Delete(ctx, pods[i].Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	})
	return errors.Join(err, a.awaitProgrammed(ctx, 0))
}

// profiled writes profiles of one more burst.
func (n *nodeBench) profiled(ctx context.Context, a *agent) error {
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error { return a.profile(inner, "profile?seconds=15", n.profiles+"/burst.pprof") })
	group.Go(func() error {
		pods, err := n.startAll(inner)
		if err != nil {
			return err
		}
		return n.endAll(inner, a, pods)
	})
	return errors.Join(group.Wait(), a.profile(ctx, "allocs", n.profiles+"/allocs.pprof"))
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func median[T any](all []T, f func(T) float64) float64 {
	values := make([]float64, 0, len(all))
	for _, v := range all {
		values = append(values, f(v))
	}
	slices.Sort(values)
	return values[len(values)/2]
}
