package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/intent"
)

// maxEvents is how many events are shown.
const maxEvents = 10

// inspectedPod returns a pod that an agent can look at.
func inspectedPod(ctx context.Context, client connection, namespace, name string) (*corev1.Pod, error) {
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	at := namespace + "/" + name
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no pod %s: see kubectl -n %s get pods; another namespace is given by -n or as NAMESPACE/POD", at, namespace)
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("get pod %s: this takes the right to get pods in namespace %s (kubectl auth can-i get pods -n %s): %w", at, namespace, namespace, err)
	case err != nil:
		return nil, fmt.Errorf("get pod %s: %w", at, clusterError(client.config, err))
	case pod.Spec.NodeName == "":
		return nil, fmt.Errorf("pod %s has no node yet, so nothing is programmed: kubectl -n %s describe pod %s says what it waits for", at, namespace, name)
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return nil, fmt.Errorf("pod %s has finished (%s): its network, and the rules in it, are gone", at, pod.Status.Phase)
	case pod.Spec.HostNetwork:
		return nil, fmt.Errorf("pod %s uses its node's network (hostNetwork), which is never redirected: give it a network of its own", at)
	}
	return pod, nil
}

// goneTimeout bounds the look whether a pod has gone.
const goneTimeout = 5 * time.Second

// gone says that the pod has gone, or goes, since it was read; "" if it has not, or that is not known.
func (w *inspectWays) gone(ctx context.Context) string {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goneTimeout)
	defer cancel()
	at := w.about()
	switch now, err := w.client.CoreV1().Pods(w.pod.Namespace).Get(ctx, w.pod.Name, metav1.GetOptions{}); {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("pod %s was deleted while its agent was asked", at)
	case err != nil:
		return ""
	case now.UID != w.pod.UID:
		return fmt.Sprintf("pod %s was deleted while its agent was asked, and another pod has its name now: ask again", at)
	case now.DeletionTimestamp != nil:
		return fmt.Sprintf("pod %s is being deleted", at)
	}
	return ""
}

// orGone returns an error with the words of gone before it: they say more.
func (w *inspectWays) orGone(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if why := w.gone(ctx); why != "" {
		return fmt.Errorf("%s: %w", why, err)
	}
	return err
}

// misplacedKeys names keys of the pod and its namespace that nearly are the agent's, which does not read them. Without the right to get the
// namespace, only the pod's are known.
func misplacedKeys(ctx context.Context, client connection, pod *corev1.Pod) []string {
	ns, err := client.CoreV1().Namespaces().Get(ctx, pod.Namespace, metav1.GetOptions{})
	if err != nil {
		ns = nil
	}
	return intent.MisplacedOf(pod, ns)
}

// agentOf returns the agent of a pod's node. During an update there are two, and both answer.
func agentOf(ctx context.Context, client connection, namespace string, pod *corev1.Pod) (cluster.Agent, error) {
	node := pod.Spec.NodeName
	found, err := agentsOf(ctx, client, namespace, node)
	if err != nil {
		return cluster.Agent{}, err
	}
	i := slices.IndexFunc(found, func(a cluster.Agent) bool { return a.Pod.Status.Phase == corev1.PodRunning })
	if i < 0 {
		return cluster.Agent{}, fmt.Errorf("no agent runs on node %s, where the pod is: its rules are not kept up; "+
			"see kubectl get pods -A -o wide -l %s, and the chart's agent.nodeSelector and agent.tolerations", node, agentstatus.Label)
	}
	return found[i], nil
}

// agentsOf lists a node's agents in the namespace that is given, or else in the usual one. It takes none of another namespace, whatever label
// its pods have: the caller's token goes to what is found, and tenants make pods.
func agentsOf(ctx context.Context, client connection, namespace, node string) ([]cluster.Agent, error) {
	found, err := cluster.Agents(ctx, client, cmp.Or(namespace, agentstatus.Name), node)
	switch {
	case err == nil && (namespace != "" || len(found) > 0):
		return found, nil
	case namespace != "":
		return nil, fmt.Errorf("find the agent of node %s in namespace %s, which takes the right to list pods there: %w", node, namespace, err)
	}
	elsewhere, errElsewhere := cluster.Agents(ctx, client, metav1.NamespaceAll, node)
	switch {
	case errElsewhere == nil && len(elsewhere) > 0:
		return nil, fmt.Errorf("namespace %s has no agent of node %s; a pod that may be one is in %s: if the agents are installed there, "+
			"give --agent-namespace, for your token is sent to it", agentstatus.Name, node, namespacesOf(elsewhere))
	case errElsewhere == nil:
		return nil, nil
	case err == nil && apierrors.IsForbidden(errElsewhere):
		return nil, fmt.Errorf("namespace %s has no agent of node %s, and there is no right to look in others: give --agent-namespace", agentstatus.Name, node)
	case apierrors.IsForbidden(errElsewhere):
		return nil, fmt.Errorf("find the agent of node %s: this takes the right to list pods in the agents' namespace (with inspect.enabled the chart has the role %s-inspect); "+
			"if they are in another namespace than %s, give --agent-namespace", node, agentstatus.Name, agentstatus.Name)
	}
	return nil, fmt.Errorf("find the agent of node %s: %w", node, clusterError(client.config, errElsewhere))
}

// namespacesOf returns the namespaces of agents, separated by commas.
func namespacesOf(agents []cluster.Agent) string {
	names := map[string]bool{}
	for _, a := range agents {
		names[a.Namespace] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}

// eventsOf returns the pod's last events, with the caller's rights.
func eventsOf(ctx context.Context, client connection, pod *corev1.Pod) inspect.Events {
	selector := fields.Set{"involvedObject.uid": string(pod.UID), "involvedObject.name": pod.Name}.AsSelector().String()
	events, err := cluster.All(ctx, client.CoreV1().Events(pod.Namespace).List, metav1.ListOptions{FieldSelector: selector}, shownEvent)
	switch {
	case apierrors.IsForbidden(err):
		return inspect.Events{Items: []inspect.Event{}, Error: "this takes the right to list events in namespace " + pod.Namespace}
	case err != nil:
		return inspect.Events{Items: []inspect.Event{}, Error: err.Error()}
	}
	slices.SortStableFunc(events, func(a, b inspect.Event) int { return b.Time.Compare(a.Time) })
	return inspect.Events{Items: events[:min(len(events), maxEvents)]}
}

func shownEvent(e *corev1.Event) (inspect.Event, bool) {
	out := inspect.Event{Time: cluster.LastSeen(e), Type: e.Type, Reason: e.Reason, Message: e.Message, Count: int(e.Count)}
	if e.Series != nil {
		out.Count = int(e.Series.Count)
	}
	return out, true
}
