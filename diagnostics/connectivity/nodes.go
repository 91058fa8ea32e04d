package connectivity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"istio-pod-network-controller/diagnostics/cluster"
)

// defaultSample is how many nodes are tested unless --nodes says otherwise.
const defaultSample = 3

// Nodes chooses the nodes to test: all, a sample, or some by name.
type Nodes struct {
	All    bool
	Sample int
	Names  []string
}

// ParseNodes reads --nodes: all, a number, or names separated by commas.
func ParseNodes(value string) (Nodes, error) {
	if value == "" {
		return Nodes{Sample: defaultSample}, nil
	}
	if value == "all" {
		return Nodes{All: true}, nil
	}
	if n, err := strconv.Atoi(value); err == nil {
		if n < 1 {
			return Nodes{}, fmt.Errorf("--nodes: value %q: want at least 1", value)
		}
		return Nodes{Sample: n}, nil
	}
	names := strings.Split(value, ",")
	for _, name := range names {
		if faults := validation.IsDNS1123Subdomain(name); len(faults) > 0 {
			return Nodes{}, fmt.Errorf("--nodes: %q is no name of a node: want all, a number, or names separated by commas: %s", name, strings.Join(faults, "; "))
		}
	}
	return Nodes{Names: slices.Compact(slices.Sorted(slices.Values(names)))}, nil
}

// choose returns the names of the nodes to test. A sample is spread over the sorted names, so that it has nodes of several pools.
func (n Nodes) choose(all []corev1.Node) ([]string, error) {
	var usable []string
	for i := range all {
		if usableNode(&all[i]) {
			usable = append(usable, all[i].Name)
		}
	}
	slices.Sort(usable)
	if len(n.Names) > 0 {
		for _, name := range n.Names {
			if !slices.Contains(usable, name) {
				return nil, fmt.Errorf("--nodes: %s is no ready Linux node of this cluster", name)
			}
		}
		return n.Names, nil
	}
	if len(usable) == 0 {
		return nil, errors.New("the cluster has no ready Linux node")
	}
	if n.All || n.Sample >= len(usable) {
		return usable, nil
	}
	out := make([]string, 0, n.Sample)
	for i := range n.Sample {
		out = append(out, usable[i*len(usable)/n.Sample])
	}
	return out, nil
}

// usableNode reports whether pods with rules can run on a node: Linux, ready, and a kubelet of its own.
func usableNode(n *corev1.Node) bool {
	os := n.Labels[corev1.LabelOSStable]
	if os != "" && os != "linux" || n.Labels["type"] == "virtual-kubelet" || n.Labels["eks.amazonaws.com/compute-type"] == "fargate" {
		return false
	}
	return cluster.NodeReady(n).Status == corev1.ConditionTrue
}

// nodes returns the names of the nodes to test. Without the right to list nodes it is one pair of pods wherever the scheduler puts it,
// unless all or certain nodes were asked for.
func (t *Tester) nodes(ctx context.Context) ([]string, error) {
	all, err := cluster.All(ctx, t.Client.CoreV1().Nodes().List, metav1.ListOptions{}, func(n *corev1.Node) (corev1.Node, bool) { return *n, true })
	if apierrors.IsForbidden(err) && !t.Nodes.All && len(t.Nodes.Names) == 0 {
		t.say("nodes cannot be listed (right: list nodes): one pair of pods, on a node that the scheduler chooses")
		return []string{""}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	return t.Nodes.choose(all)
}
