package connectivity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/intent"
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
	all, err := cluster.Nodes(ctx, t.Client, "")
	if apierrors.IsForbidden(err) && !t.Nodes.All && len(t.Nodes.Names) == 0 {
		t.Say("nodes cannot be listed (right: list nodes): one pair of pods, on a node that the scheduler chooses")
		return []string{""}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	return t.Nodes.choose(all)
}

// Agent is what a run takes from the agents' pods.
type Agent struct {
	Image  string
	Select intent.Selection
}

// FindAgent returns what one of the agents' pods says. An empty namespace means wherever they are: in one namespace, since some
// tenants may make pods that pass for agents, and the test runs the image.
func FindAgent(ctx context.Context, client kubernetes.Interface, namespace string) (Agent, error) {
	byNamespace := map[string]Agent{}
	agents, err := cluster.Agents(ctx, client, namespace, "")
	if err != nil {
		return Agent{}, fmt.Errorf("list pods: %w", err)
	}
	for _, a := range agents {
		if c := cluster.Container(&a.Pod.Spec); c.Image != "" {
			byNamespace[a.Namespace] = Agent{c.Image, intent.Selection(cluster.Flag(c, "select"))}
		}
	}
	names := slices.Sorted(maps.Keys(byNamespace))
	switch len(names) {
	case 0:
		return Agent{}, errors.New("there is no agent: no pod of a DaemonSet with the host's network has the label " + agentstatus.Label)
	case 1:
		return byNamespace[names[0]], nil
	}
	return Agent{}, fmt.Errorf("pods with the label %s are in the namespaces %s: say by --agent-namespace which are the agents", agentstatus.Label, strings.Join(names, ", "))
}
