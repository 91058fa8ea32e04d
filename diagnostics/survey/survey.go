// Package survey asks a cluster how the agents and the pods that ask for redirection stand. It reads only, and makes do with the rights that
// it has.
package survey

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/printable"
)

// Options say what is asked.
type Options struct {
	// Namespace has the pods; empty means all. Fallback is asked without the right to list the pods of all.
	Namespace, Fallback string
	// Labels is a selector of pods. Node limits the answer to a node; empty means all.
	Labels, Node string
	// AgentNamespace has the agents; empty means all.
	AgentNamespace string
	// Version is this program's; "" if it is not known.
	Version string
}

// Report is the answer.
type Report struct {
	Time time.Time `json:"time"`
	// Namespace has the pods; empty means all.
	Namespace string `json:"namespace,omitempty"`
	Nodes     []Node `json:"nodes"`
	Pods      []Pod  `json:"pods"`
	// Trouble is what is wrong with neither a node nor a pod. Missing are the rights that the asker lacks, and what is not shown for it.
	Trouble []string `json:"trouble,omitempty"`
	Missing []string `json:"missing,omitempty"`
	// Incomplete means that fewer pods were looked at than were asked for, because a right is missing.
	Incomplete bool `json:"incomplete,omitempty"`
}

// Failing reports whether something does not work as it was asked for.
func (r Report) Failing() bool {
	return len(r.Trouble) > 0 || slices.ContainsFunc(r.Nodes, func(n Node) bool { return len(n.Trouble) > 0 }) ||
		slices.ContainsFunc(r.Pods, func(p Pod) bool { return p.State.Failing() })
}

// Problems returns the report with its pods and nodes in trouble alone.
func (r Report) Problems() Report {
	r.Nodes = slices.DeleteFunc(slices.Clone(r.Nodes), func(n Node) bool { return len(n.Trouble) == 0 })
	r.Pods = slices.DeleteFunc(slices.Clone(r.Pods), func(p Pod) bool { return !p.Problem() })
	return r
}

// asked is what the API server has answered about everything but pods.
type asked struct {
	nodes                     []corev1.Node
	agents                    []cluster.Agent
	namespaces                map[string]*corev1.Namespace // nil: not known
	nodesListed, agentsListed bool
	missing, trouble          []string
}

// Ask asks a cluster. An error means that nothing could be found out.
func Ask(ctx context.Context, client kubernetes.Interface, o Options) (Report, error) {
	now := time.Now().UTC()
	a, err := around(ctx, client, o)
	if err != nil {
		return Report{}, err
	}
	r := Report{Time: now.Truncate(time.Second), Namespace: o.Namespace, Pods: []Pod{}, Trouble: a.trouble, Missing: a.missing}
	r.Nodes = nodesOf(a.nodes, a.nodesListed, a.agents, o.Version, now)
	if err := addPods(ctx, client, &r, o, a, now); err != nil {
		return Report{}, err
	}
	r.countAsking(a.agentsListed)
	return r, nil
}

// addPods lists the pods. Without the right to list all namespaces, it lists the Fallback.
func addPods(ctx context.Context, client kubernetes.Interface, r *Report, o Options, a asked, now time.Time) error {
	at := place{now: now, withoutAgent: a.withoutAgent(r.Nodes), proxiesOn: a.proxiesOn()}
	list := metav1.ListOptions{LabelSelector: o.Labels, FieldSelector: "status.phase!=Succeeded,status.phase!=Failed"} // they need nothing any more
	if o.Node != "" {
		list.FieldSelector += ",spec.nodeName=" + o.Node
	}
	page := func(ctx context.Context, list metav1.ListOptions) (*corev1.PodList, error) {
		return client.CoreV1().Pods(r.Namespace).List(ctx, list)
	}
	keep := func(pod *corev1.Pod) (Pod, bool) {
		at.namespace = a.namespaces[pod.Namespace]
		return podOf(pod, at)
	}
	pods, err := cluster.All(ctx, page, list, keep)
	if apierrors.IsForbidden(err) && o.Namespace == "" && o.Fallback != "" {
		r.Missing = append(r.Missing, lacks("pods", "")+"only those of namespace "+o.Fallback+" are shown")
		r.Incomplete, r.Namespace = true, o.Fallback
		pods, err = cluster.All(ctx, page, list, keep)
	}
	if apierrors.IsForbidden(err) && len(r.Nodes) > 0 {
		r.Missing, r.Incomplete = append(r.Missing, lacks("pods", r.Namespace)+"no pods are shown"), true
		return nil
	}
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	r.Pods = pods
	slices.SortFunc(r.Pods, func(a, b Pod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return nil
}

// lacks begins a sentence about a missing right.
func lacks(resource, namespace string) string {
	if namespace == "" {
		return `this account lacks the right "list ` + resource + `" for the whole cluster (config/samples/status-reader.yaml grants it): `
	}
	return `this account lacks the right "list ` + resource + `" in namespace ` + namespace + ": "
}

// withoutAgent returns what reports whether a node has no agent; false if that is not known.
func (a asked) withoutAgent(nodes []Node) func(string) bool {
	have := map[string]bool{}
	for _, n := range nodes {
		have[n.Name] = n.Agent != ""
	}
	return func(node string) bool { return a.agentsListed && !have[node] }
}

// proxiesOn returns whether the agent of a node runs proxies, which its arguments say.
func (a asked) proxiesOn() func(string) bool {
	without := map[string]bool{}
	for node, agents := range byNode(a.agents) {
		without[node] = cluster.Flag(cluster.Container(&agents[0].Pod.Spec), "sidecars") != "true"
	}
	return func(node string) bool { return !without[node] }
}

// countAsking adds to nodes without an agent how many of the listed pods ask there. If agents could not be listed, no node is known to lack one.
func (r *Report) countAsking(listed bool) {
	asking := map[string]int{}
	for _, p := range r.Pods {
		if p.Node != "" && p.State != Skipped && p.State != Removed {
			asking[p.Node]++
		}
	}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		n.AgentUnknown = n.Agent == "" && !listed
		if n.Agent != "" || n.AgentUnknown || asking[n.Name] == 0 {
			continue
		}
		n.Asking = asking[n.Name]
		n.Trouble = append(n.Trouble, fmt.Sprintf("no agent, and %s %s here", printable.Count(n.Asking, "pod"), map[bool]string{true: "asks", false: "ask"}[n.Asking == 1]))
	}
}

// around asks for nodes, agents and namespaces. A missing right is noted; any other error ends it.
func around(ctx context.Context, client kubernetes.Interface, o Options) (a asked, err error) {
	for _, ask := range []func(context.Context, kubernetes.Interface, Options, *asked) error{askNodes, askAgents, askNamespaces} {
		if err := ask(ctx, client, o, &a); err != nil {
			return a, err
		}
	}
	return a, nil
}

func askNodes(ctx context.Context, client kubernetes.Interface, o Options, a *asked) (err error) {
	a.nodes, err = cluster.Nodes(ctx, client, o.Node)
	if a.nodesListed = err == nil; a.nodesListed && o.Node != "" && len(a.nodes) == 0 {
		return fmt.Errorf("node %q does not exist", o.Node)
	}
	return a.without(err, "list nodes", lacks("nodes", "")+"nodes without an agent are not shown")
}

// without notes what is missing for want of a right. Any other error is returned, with what was tried.
func (a *asked) without(err error, tried, missing string) error {
	switch {
	case apierrors.IsForbidden(err):
		a.missing = append(a.missing, missing)
	case err != nil:
		return fmt.Errorf("%s: %w", tried, err)
	}
	return nil
}

// askAgents lists the agents' pods. Who may not list pods in all namespaces may have the right in the agents' own.
func askAgents(ctx context.Context, client kubernetes.Interface, o Options, a *asked) (err error) {
	in := o.AgentNamespace
	a.agents, err = cluster.Agents(ctx, client, in, o.Node)
	if apierrors.IsForbidden(err) && in == "" {
		in = agentstatus.Name
		a.agents, err = cluster.Agents(ctx, client, in, o.Node)
	}
	if err != nil {
		return a.without(err, "list agents", lacks("pods", in)+"agents are not shown; --agent-namespace says where they are")
	}
	// Where only one namespace was asked, and has no agents, they may be in another one.
	a.agentsListed = in == o.AgentNamespace || len(a.agents) > 0
	if !a.agentsListed {
		a.missing = append(a.missing, lacks("pods", "")+"agents are not shown, as namespace "+in+" has none; --agent-namespace says where they are")
	}
	if a.agentsListed && len(a.agents) == 0 && o.Node == "" {
		where := "the cluster has no agent"
		if in != "" {
			where = "namespace " + in + " has no agent"
		}
		a.trouble = append(a.trouble, where+": no pod has the label "+agentstatus.Label+"; docs/install.md says how to install it")
	}
	return nil
}

// askNamespaces reads the namespaces' annotations: all, or the given namespace's, which must exist.
func askNamespaces(ctx context.Context, client kubernetes.Interface, o Options, a *asked) error {
	a.namespaces = map[string]*corev1.Namespace{}
	if o.Namespace != "" {
		return askNamespace(ctx, client, o.Namespace, a)
	}
	_, err := cluster.All(ctx, client.CoreV1().Namespaces().List, metav1.ListOptions{}, func(ns *corev1.Namespace) (none struct{}, keep bool) {
		a.namespaces[ns.Name] = ns
		return none, false
	})
	return a.without(err, "list namespaces", lacks("namespaces", "")+"pods for which only their namespace asks are shown once they have a report")
}

func askNamespace(ctx context.Context, client kubernetes.Interface, name string, a *asked) error {
	ns, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("namespace %q does not exist", name)
	case err != nil:
		return a.without(err, "get namespace "+name, `this account lacks the right "get namespaces" for namespace `+name+
			": pods for which only their namespace asks are shown once they have a report")
	}
	a.namespaces[name] = ns
	if ns.DeletionTimestamp != nil || ns.Status.Phase == corev1.NamespaceTerminating {
		a.trouble = append(a.trouble, "namespace "+name+" is being deleted: its pods end, and no new ones start")
	}
	return nil
}
