package survey

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/internal/agentstatus"
)

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
