package survey

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"istio-pod-network-controller/diagnostics/cluster"
)

// Names returns the names of the cluster's nodes or namespaces that begin with a prefix.
func Names(ctx context.Context, client kubernetes.Interface, resource, prefix string) ([]string, error) {
	all := metav1.ListOptions{}
	switch resource {
	case "nodes":
		return cluster.All(ctx, client.CoreV1().Nodes().List, all, func(n *corev1.Node) (string, bool) { return n.Name, strings.HasPrefix(n.Name, prefix) })
	case "namespaces":
		return cluster.All(ctx, client.CoreV1().Namespaces().List, all, func(n *corev1.Namespace) (string, bool) { return n.Name, strings.HasPrefix(n.Name, prefix) })
	}
	return nil, fmt.Errorf("names of %s: want nodes or namespaces", resource)
}

// AgentVersion is a version, and on how many nodes the agent in charge has it.
type AgentVersion struct {
	Version string `json:"version"` // with the commit
	Nodes   int    `json:"nodes"`
}

// AgentVersions returns the versions of the agents, the one on most nodes first.
func AgentVersions(ctx context.Context, client kubernetes.Interface, namespace string) ([]AgentVersion, error) {
	var a asked
	if err := askAgents(ctx, client, Options{AgentNamespace: namespace}, &a); err != nil {
		return nil, err
	}
	if !a.agentsListed {
		return nil, apierrors.NewForbidden(corev1.Resource("pods"), "", fmt.Errorf("%s", strings.Join(a.missing, "; ")))
	}
	count := map[string]int{}
	for _, agents := range byNode(a.agents) {
		count[versionOf(agents[0])]++
	}
	out := make([]AgentVersion, 0, len(count))
	for version, nodes := range count {
		out = append(out, AgentVersion{version, nodes})
	}
	slices.SortFunc(out, func(a, b AgentVersion) int { return cmp.Or(b.Nodes-a.Nodes, strings.Compare(a.Version, b.Version)) })
	return out, nil
}

// versionOf returns what an agent says about its version.
func versionOf(a cluster.Agent) string {
	if a.Status == nil || a.Status.Version == "" {
		return "unknown (it says nothing about itself)"
	}
	return a.Status.Version + " (" + a.Status.Revision + ")"
}
