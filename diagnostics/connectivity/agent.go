package connectivity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

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
