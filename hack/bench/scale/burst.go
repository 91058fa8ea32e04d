package scale

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/hack/bench/table"
)

const (
	burstRounds = 3
	// startsAtOnce is how many sandboxes a node makes at a time; networkTime and containerTime are what each takes beside the agent.
	startsAtOnce  = 8
	networkTime   = 100 * time.Millisecond
	containerTime = 300 * time.Millisecond
)

// Burst measures what pods cost the agent that are made at once and deleted at once, for all their life.
func (b *Bench) Burst(ctx context.Context) ([]table.Row, error) {
	return bySource(func(fromKubelet bool) ([]table.Row, error) { return b.burst(ctx, fromKubelet) })
}

func (b *Bench) burst(ctx context.Context, fromKubelet bool) ([]table.Row, error) {
	return b.onNode(ctx, 1, fromKubelet, func(n *node) (rows []table.Row, err error) {
		a, err := n.startAgent(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, a.stop()) }()
		var startCPU, endCPU, requests, writes, calls []float64
		for range burstRounds {
			counts := func() (m metrics, called float64, err error) {
				m, err = a.metrics(ctx)
				return m, float64(n.runtime.Calls.Load()), err
			}
			saidBefore, calledBefore, errBefore := counts()
			before, err := a.usage()
			pods, errStart := n.startAll(ctx)
			middle, errMiddle := a.usage()
			if err := errors.Join(errBefore, err, errStart, errMiddle); err != nil {
				return nil, err
			}
			errEnd := n.endAll(ctx, a, pods)
			after, err := a.usage()
			said, called, errAfter := counts()
			if err := errors.Join(errEnd, err, errAfter); err != nil {
				return nil, err
			}
			each := func(to *[]float64, all float64) { *to = append(*to, all/float64(n.crowd)) }
			each(&startCPU, milliseconds(middle.cpu-before.cpu))
			each(&endCPU, milliseconds(after.cpu-middle.cpu))
			each(&requests, said.requests()-saidBefore.requests())
			each(&writes, said.writes()-saidBefore.writes())
			each(&calls, called-calledBefore)
		}
		what := fmt.Sprintf("%d pods at once", n.crowd)
		return []table.Row{
			table.New("CPU of the agent for a pod's start, "+what, "ms", table.Quantile(startCPU, 50), 0).To("<= 4"),
			table.New("CPU of the agent for a pod's end, "+what, "ms", table.Quantile(endCPU, 50), 0),
			table.New("API requests for a pod's life, "+what, "count", table.Quantile(requests, 50), 0),
			table.New("API writes for a pod's life, "+what, "count", table.Quantile(writes, 50), 0).To("1"),
			table.New("time that the runtime waits for the agent at a pod's start, "+what+", p50", "ms", table.Quantile(n.runtime.Waits, 50), 0),
			table.New("time that the runtime waits for the agent at a pod's start, "+what+", p99", "ms", table.Quantile(n.runtime.Waits, 99), 0),
			table.New("calls of the runtime for a pod's life, "+what, "count", table.Quantile(calls, 50), 0),
		}, nil
	})
}

// startAll starts pods as kubelet and runtime do, and waits until each has the agent's report.
func (n *node) startAll(ctx context.Context) ([]*corev1.Pod, error) {
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

func (n *node) startPod(ctx context.Context, number int, free chan struct{}) (*corev1.Pod, error) {
	pod, err := n.server.admin.CoreV1().Pods(namespaceName(0)).Create(ctx, newPod(podName(number), namespaceName(0), measured), metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	if n.kubelets != nil { // which know their pods before their runtimes do
		n.kubelets.OnAdd(pod, false)
	}
	if err := n.server.setStatus(ctx, starting(pod)); err != nil {
		return nil, err
	}
	free <- struct{}{}
	defer func() { <-free }()
	if err := pause(ctx, networkTime); err != nil {
		return nil, err
	}
	if err := n.runtime.Run(ctx, pod); err != nil {
		return nil, err
	}
	return pod, errors.Join(pause(ctx, containerTime), n.server.setStatus(ctx, running(pod, number)))
}

// endAll ends pods as kubelet and runtime do, and waits until the agent has forgotten them.
func (n *node) endAll(ctx context.Context, a *agent, pods []*corev1.Pod) error {
	err := each(ctx, len(pods), func(ctx context.Context, i int) error {
		api := n.server.admin.CoreV1().Pods(pods[i].Namespace)
		if err := api.Delete(ctx, pods[i].Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		if err := n.runtime.End(ctx, pods[i]); err != nil {
			return err
		}
		return api.Delete(ctx, pods[i].Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	})
	return errors.Join(err, a.awaitProgrammed(ctx, 0))
}
