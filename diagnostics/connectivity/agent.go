package connectivity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/intent"
)

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
		if found := agentOf(&a.Pod.Spec); found.Image != "" {
			byNamespace[a.Namespace] = found
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

func agentOf(spec *corev1.PodSpec) (found Agent) {
	for i := range spec.Containers {
		c := &spec.Containers[i]
		if c.Name != agentstatus.Container {
			continue
		}
		found.Image = c.Image
		for _, arg := range c.Args {
			if value, ok := strings.CutPrefix(arg, "--select="); ok {
				found.Select = intent.Selection(value)
			}
		}
	}
	return found
}
