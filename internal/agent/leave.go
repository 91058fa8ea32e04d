package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// wantsCNI is the annotation of the agent's DaemonSet with the value of --cni that its agents have.
const wantsCNI = "pod-network-controller.istio.io/cni"

// maxRefusals is how many refusals in a row mean that the agent has lost its rights. Fewer may come from an API server that has just
// started and does not know the rights yet.
const maxRefusals = 3

// home is the DaemonSet that the agent belongs to. While it exists, another agent follows this one on its node.
type home struct {
	api             metadata.Interface
	namespace, name string
	// every is the time between two requests; limit bounds all of them.
	every, limit time.Duration
}

// newHome returns nil for an agent without a DaemonSet.
func newHome(config *rest.Config, namespace, name string) (*home, error) {
	if name == "" {
		return nil, nil //nolint:nilnil // an agent may run without a DaemonSet
	}
	config = rest.CopyConfig(config)
	config.Timeout = 2 * time.Second // for one request
	api, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client for the agent's DaemonSet: %w", err)
	}
	return &home{api: api, namespace: namespace, name: name, every: time.Second, limit: 5 * time.Second}, nil
}

// noSuccessor returns why no other agent will need the CNI chain after this one, or "" if one will. An error means that this could not be
// found out within the limit.
//
//   - The DaemonSet does not exist, is being deleted (itself or its namespace), or does not want the chain any more: no successor.
//   - The API server refuses the request maxRefusals times in a row: no successor. The agent's Role and account go with the DaemonSet.
//   - A DaemonSet of that name exists, even one that was made anew: a successor.
func (h *home) noSuccessor(ctx context.Context) (reason string, err error) {
	ctx, cancel := context.WithTimeout(ctx, h.limit)
	defer cancel()
	for refused := 0; ; {
		reason, err = h.ask(ctx)
		switch {
		case err == nil:
			return reason, nil
		case genuine(err) && (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)):
			if refused++; refused == maxRefusals {
				return "the agent may not ask for its DaemonSet any more", nil
			}
		default:
			refused = 0
		}
		select {
		case <-ctx.Done():
			return "", err
		case <-time.After(h.every):
		}
	}
}

func (h *home) ask(ctx context.Context) (reason string, err error) {
	sets := h.api.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"})
	set, err := sets.Namespace(h.namespace).Get(ctx, h.name, metav1.GetOptions{})
	switch {
	case genuine(err) && apierrors.IsNotFound(err):
		return "the agent's DaemonSet is gone", nil
	case err != nil:
		return "", fmt.Errorf("get DaemonSet %s/%s: %w", h.namespace, h.name, err)
	case set.DeletionTimestamp != nil:
		return "the agent's DaemonSet is being deleted", nil
	}
	if wants, ok := set.Annotations[wantsCNI]; ok && wants != CNIInstall {
		return "the agent's DaemonSet says " + wantsCNI + "=" + wants, nil
	}
	// A namespace that is being deleted loses its pods before its DaemonSets.
	namespace, err := h.api.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Get(ctx, h.namespace, metav1.GetOptions{})
	if err == nil && namespace.DeletionTimestamp != nil {
		return "the agent's namespace is being deleted", nil
	}
	return "", nil
}

// genuine reports whether an error is the API server's own answer, and not that of a proxy on the way.
func genuine(err error) bool {
	return err != nil && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// chainKeeper puts the CNI plugin into the node's chain and keeps it there.
type chainKeeper interface {
	Start(ctx context.Context) error
	Uninstall() error
}

// keepChain keeps the plugin in the chain. If the process ends (process.Err is not nil) and no other agent will follow, it removes the
// plugin: with a chain that calls an agent which never comes back, no pod starts.
func keepChain(process context.Context, log logr.Logger, chain chainKeeper, h *home) manager.RunnableFunc {
	return func(ctx context.Context) error {
		if err := chain.Start(ctx); err != nil || process.Err() == nil || h == nil {
			return err
		}
		reason, err := h.noSuccessor(context.WithoutCancel(process))
		switch {
		case err != nil:
			log.Error(err, "CNI plugin left in the chain: nobody could tell whether another agent follows")
		case reason == "":
			log.Info("CNI plugin left in the chain for the next agent")
		default:
			if err := chain.Uninstall(); err != nil {
				log.Error(err, "CNI plugin still in the chain of an agent that ends for good: run `cni uninstall` on the node", "reason", reason)
				return nil
			}
			log.Info("CNI plugin taken out of the chain", "reason", reason)
		}
		return nil
	}
}
