package agent

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/runtime/cni/install"
)

const (
	// callCheckInterval is the time between looks at the node's pods, which are read from the cache.
	callCheckInterval = 5 * time.Second
	// callGracePeriod is how long after the plugin was chained, or the socket was taken over, a pod may get its network without a call: the
	// runtime reads its configuration a moment later, and the kubelet reports a pod's network with a delay.
	callGracePeriod = 30 * time.Second
)

// callWatch notices pods that got a network although the chained plugin was not called. It is a manager.Runnable.
type callWatch struct {
	pods     client.Reader
	calls    *install.Calls
	excluded func(namespace string) bool
	// serving reports whether the plugin is in the chain and its requests come to this agent.
	serving func() bool
	// notify is called with each new fault.
	notify func(error)

	since time.Time // since when serving has been true, zero while it is false
	fault atomic.Pointer[string]
}

// Start inspects the pods until ctx ends.
func (w *callWatch) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) { w.inspect(ctx, time.Now()) }, callCheckInterval)
	return nil
}

// Check returns the fault if the plugin does not seem to be called.
func (w *callWatch) Check() error {
	if fault := w.fault.Load(); fault != nil {
		return fmt.Errorf("CNI plugin not called: %s", *fault)
	}
	return nil
}

func (w *callWatch) inspect(ctx context.Context, now time.Time) {
	if !w.serving() {
		w.since = time.Time{}
		w.fault.Store(nil)
		return
	}
	if w.since.IsZero() {
		w.since = now
	}
	graceEnd := w.since.Add(callGracePeriod)
	if now.Before(graceEnd) {
		return
	}
	var pods corev1.PodList
	if err := w.pods.List(ctx, &pods); err != nil {
		return // the readiness check "cache" reports it
	}
	err := w.calls.Check(w.podsWithNetwork(pods.Items), graceEnd, now)
	if err == nil {
		w.fault.Store(nil)
		return
	}
	text := err.Error()
	if previous := w.fault.Swap(&text); previous == nil || *previous != text {
		w.notify(err)
	}
}

// podsWithNetwork returns the pods with a network for which the runtime must have called the plugin.
func (w *callWatch) podsWithNetwork(pods []corev1.Pod) []install.Pod {
	var out []install.Pod
	for i := range pods {
		pod := &pods[i]
		if pod.Spec.HostNetwork || w.excluded(pod.Namespace) {
			continue
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue {
				out = append(out, install.Pod{Name: pod.Namespace + "/" + pod.Name, Started: startTime(pod, c)})
			}
		}
	}
	return out
}

// startTime returns when the kubelet began to start a pod. The condition's time is when the kubelet reported the pod's network: before Kubernetes
// 1.37 it does so once the images are pulled, maybe minutes after the plugin was called.
func startTime(pod *corev1.Pod, network corev1.PodCondition) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return network.LastTransitionTime.Time
}
