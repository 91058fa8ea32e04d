package connectivity

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/diagnostics/cluster"
)

// notRunning says why a pod does not run with all containers and an address, or "".
func notRunning(pod *corev1.Pod) string {
	if why := beingDeleted(pod); why != "" {
		return why
	}
	if pod.Status.Phase == corev1.PodFailed {
		return fmt.Sprintf("pod %s failed: %s %s", pod.Name, pod.Status.Reason, pod.Status.Message)
	}
	if c := cluster.Condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return fmt.Sprintf("pod %s is not scheduled: %s", pod.Name, c.Message)
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			if w := list[i].State.Waiting; w != nil {
				return fmt.Sprintf("pod %s: container %s waits: %s", pod.Name, list[i].Name, strings.TrimSpace(w.Reason+" "+w.Message))
			}
		}
	}
	if pod.Status.Phase != corev1.PodRunning && terminated(pod) == nil || len(addresses(pod)) == 0 {
		return fmt.Sprintf("pod %s is %s", pod.Name, pod.Status.Phase)
	}
	return ""
}

// beingDeleted says that a pod is going, or "".
func beingDeleted(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return deletedPod + pod.Name
	}
	return ""
}

// clientEnded says that the client has not ended yet, or "".
func clientEnded(pod *corev1.Pod) string {
	if terminated(pod) == nil {
		return fmt.Sprintf("pod %s has not ended its proofs", pod.Name)
	}
	return ""
}

// terminated is how the application's container ended, or nil.
func terminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	for i := range pod.Status.ContainerStatuses {
		if s := &pod.Status.ContainerStatuses[i]; s.Name == containerApplication {
			return s.State.Terminated
		}
	}
	return nil
}

// addresses are a pod's addresses, one of each family.
func addresses(pod *corev1.Pod) (out []netip.Addr) {
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// eventLimit bounds the look at events: what is missing without them is an explanation.
const eventLimit = 5 * time.Second

// lastEvent is the newest warning about a pod as a part of a sentence, or "" if there is none or events may not be read.
func (t *Tester) lastEvent(ctx context.Context, pod string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), eventLimit)
	defer cancel()
	list, err := t.Client.CoreV1().Events(t.pods.namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.name=" + pod + ",type=" + corev1.EventTypeWarning, Limit: cluster.PageSize,
	})
	if err != nil || len(list.Items) == 0 {
		return ""
	}
	last := &list.Items[0]
	for i := range list.Items {
		if e := &list.Items[i]; last.LastTimestamp.Before(&e.LastTimestamp) {
			last = e
		}
	}
	return fmt.Sprintf("; its last event: %s: %s", last.Reason, short(last.Message))
}
