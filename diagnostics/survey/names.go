package survey

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"istio-pod-network-controller/internal/agentstatus"
)

// Names returns the names of the cluster's nodes or namespaces that begin with a prefix.
func (c *Client) Names(ctx context.Context, resource, prefix string) (names []string, err error) {
	switch resource {
	case "nodes":
		var nodes []corev1.Node
		nodes, err = c.nodes(ctx, query{})
		for i := range nodes {
			names = append(names, nodes[i].Name)
		}
	case "namespaces":
		var namespaces []corev1.Namespace
		namespaces, err = c.namespaces(ctx)
		for i := range namespaces {
			names = append(names, namespaces[i].Name)
		}
	default:
		err = fmt.Errorf("names of %s: want nodes or namespaces", resource)
	}
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix) }), err
}

// AgentVersion is a version, and on how many nodes the agent in charge has it.
type AgentVersion struct {
	Version string `json:"version"` // with the commit
	Nodes   int    `json:"nodes"`
}

// AgentVersions returns the versions of the agents, the one on most nodes first.
func (c *Client) AgentVersions(ctx context.Context, namespace string) ([]AgentVersion, error) {
	var a asked
	if err := c.askAgents(ctx, Options{AgentNamespace: namespace}, &a); err != nil {
		return nil, err
	}
	if !a.agentsListed {
		return nil, apierrors.NewForbidden(corev1.Resource("pods"), "", fmt.Errorf("%s", strings.Join(a.missing, "; ")))
	}
	count := map[string]int{}
	for _, pods := range byNode(a.agents) {
		count[versionOf(pods[0])]++
	}
	out := make([]AgentVersion, 0, len(count))
	for version, nodes := range count {
		out = append(out, AgentVersion{version, nodes})
	}
	slices.SortFunc(out, func(a, b AgentVersion) int {
		if a.Nodes != b.Nodes {
			return b.Nodes - a.Nodes
		}
		return strings.Compare(a.Version, b.Version)
	})
	return out, nil
}

// versionOf returns what an agent says about its version.
func versionOf(pod *corev1.Pod) string {
	said, err := agentstatus.Parse(pod.Annotations[agentstatus.Annotation])
	if err != nil || said.Version == "" {
		return "unknown (it says nothing about itself)"
	}
	return said.Version + " (" + said.Revision + ")"
}
