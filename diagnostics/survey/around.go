package survey

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"istio-pod-network-controller/internal/agentstatus"
)

// around asks for nodes, agents and namespaces, at the same time. A missing right is noted; any other error ends it.
func (c *Client) around(ctx context.Context, o Options) (asked, error) {
	var nodes, agents, namespaces asked
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.askNodes(ctx, o, &nodes) })
	group.Go(func() error { return c.askAgents(ctx, o, &agents) })
	group.Go(func() error { return c.askNamespaces(ctx, o, &namespaces) })
	err := group.Wait()
	out := nodes
	out.agents, out.agentsListed, out.namespaces = agents.agents, agents.agentsListed, namespaces.namespaces
	out.missing = append(append(out.missing, agents.missing...), namespaces.missing...)
	out.trouble = append(append(out.trouble, agents.trouble...), namespaces.trouble...)
	return out, err
}

func (c *Client) askNodes(ctx context.Context, o Options, a *asked) (err error) {
	q := query{}
	if o.Node != "" {
		q.fields = "metadata.name=" + o.Node
	}
	a.nodes, err = c.nodes(ctx, q)
	switch {
	case apierrors.IsForbidden(err):
		a.missing = append(a.missing, lacks("nodes", "")+"nodes without an agent are not shown")
		return nil
	case err != nil:
		return fmt.Errorf("list nodes: %w", err)
	case o.Node != "" && len(a.nodes) == 0:
		return fmt.Errorf("node %q does not exist", o.Node)
	}
	a.nodesListed = true
	return nil
}

// askAgents lists the agents' pods. Who may not list pods in all namespaces may have the right in the agents' own.
func (c *Client) askAgents(ctx context.Context, o Options, a *asked) error {
	q := query{namespace: o.AgentNamespace, labels: agentstatus.Label}
	if o.Node != "" {
		q.fields = "spec.nodeName=" + o.Node
	}
	again := func() { a.agents = nil }
	each := func(pods []corev1.Pod) {
		a.agents = append(a.agents, slices.DeleteFunc(pods, func(pod corev1.Pod) bool { return !agentstatus.IsAgent(&pod) })...)
	}
	err := c.pods(ctx, q, again, each)
	if apierrors.IsForbidden(err) && q.namespace == "" {
		again()
		q.namespace = DefaultAgentNamespace
		err = c.pods(ctx, q, again, each)
	}
	switch {
	case apierrors.IsForbidden(err):
		a.missing = append(a.missing, lacks("pods", q.namespace)+"agents are not shown; --agent-namespace says where they are")
		return nil
	case err != nil:
		return fmt.Errorf("list agents: %w", err)
	}
	// Where only one namespace was asked, and has no agents, they may be in another one.
	a.agentsListed = q.namespace == o.AgentNamespace || len(a.agents) > 0
	if !a.agentsListed {
		a.missing = append(a.missing, lacks("pods", "")+"agents are not shown, as namespace "+q.namespace+" has none; --agent-namespace says where they are")
	}
	if a.agentsListed && len(a.agents) == 0 && o.Node == "" {
		where := "the cluster has no agent"
		if q.namespace != "" {
			where = "namespace " + q.namespace + " has no agent"
		}
		a.trouble = append(a.trouble, where+": no pod has the label "+agentstatus.Label+"; docs/install.md says how to install it")
	}
	return nil
}

// askNamespaces reads the namespaces' annotations: all, or the one that is asked for, which must exist.
func (c *Client) askNamespaces(ctx context.Context, o Options, a *asked) error {
	a.namespaces = map[string]*corev1.Namespace{}
	if o.Namespace != "" {
		return c.askNamespace(ctx, o.Namespace, a)
	}
	all, err := c.namespaces(ctx)
	switch {
	case apierrors.IsForbidden(err):
		a.missing = append(a.missing, lacks("namespaces", "")+"pods for which only their namespace asks are shown once they have a report")
		return nil
	case err != nil:
		return fmt.Errorf("list namespaces: %w", err)
	}
	for i := range all {
		a.namespaces[all[i].Name] = &all[i]
	}
	return nil
}

func (c *Client) askNamespace(ctx context.Context, name string, a *asked) error {
	ns, err := c.namespace(ctx, name)
	switch {
	case apierrors.IsForbidden(err):
		a.missing = append(a.missing, `this account lacks the right "get namespaces" for namespace `+name+
			": pods for which only their namespace asks are shown once they have a report")
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("namespace %q does not exist", name)
	case err != nil:
		return fmt.Errorf("get namespace %s: %w", name, err)
	}
	a.namespaces[name] = ns
	if ns.DeletionTimestamp != nil || ns.Status.Phase == corev1.NamespaceTerminating {
		a.trouble = append(a.trouble, "namespace "+name+" is being deleted: its pods end, and no new ones start")
	}
	return nil
}
