package survey

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
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
