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

	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/internal/outage"
)

// CNIAnnotation is the annotation of the agent's DaemonSet with the value of --cni that its agents have.
const CNIAnnotation = "pod-network-controller.istio.io/cni"

// ownDaemonSet is the DaemonSet that the agent belongs to. While it exists, it starts another agent on the node after this one.
type ownDaemonSet struct {
	api             metadata.Interface
	namespace, name string
	// interval is the time between two requests; timeout is for how long an API server without an answer is asked.
	interval, timeout time.Duration
	// rights is for how long refusals may come from an API server that starts: after it the agent has lost its rights.
	rights time.Duration
}

// newOwnDaemonSet returns nil for an agent without a DaemonSet.
func newOwnDaemonSet(config *rest.Config, namespace, name string) (*ownDaemonSet, error) {
	if name == "" {
		return nil, nil
	}
	config = rest.CopyConfig(config)
	config.Timeout = 2 * time.Second // for one request
	api, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client for the agent's DaemonSet: %w", err)
	}
	return &ownDaemonSet{api: api, namespace: namespace, name: name, interval: time.Second, timeout: 5 * time.Second, rights: outage.RightsLimit}, nil
}

// noSuccessor returns why no other agent will need the CNI chain after this one, or "" if one will. An error means that this could not be
// found out within the timeout.
//
//   - The DaemonSet does not exist, is being deleted (itself or its namespace), or does not want the chain any more: gone.
//   - The API server refuses every request for as long as d.rights: gone. The agent's Role and account go with the DaemonSet.
//   - A DaemonSet of that name exists, even a new one: not gone.
func (d *ownDaemonSet) noSuccessor(ctx context.Context) (reason string, err error) {
	began := time.Now()
	for answered := began; ; { // answered is when the API server last did anything else than refuse
		reason, err = d.whyNoSuccessor(ctx)
		switch refused := fromAPIServer(err) && (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)); {
		case err == nil:
			return reason, nil
		case refused && time.Since(answered) >= d.rights:
			return "the agent may no longer read its DaemonSet", nil
		case !refused && time.Since(began) >= d.timeout:
			return "", err
		case !refused:
			answered = time.Now()
		}
		select {
		case <-ctx.Done():
			return "", err
		case <-time.After(d.interval + jitter.Full(d.interval)): // all nodes ask when the chart is removed
		}
	}
}

func (d *ownDaemonSet) whyNoSuccessor(ctx context.Context) (reason string, err error) {
	sets := d.api.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"})
	set, err := sets.Namespace(d.namespace).Get(ctx, d.name, metav1.GetOptions{})
	switch {
	case fromAPIServer(err) && apierrors.IsNotFound(err):
		return "the agent's DaemonSet is gone", nil
	case err != nil:
		return "", fmt.Errorf("get DaemonSet %s/%s: %w", d.namespace, d.name, err)
	case set.DeletionTimestamp != nil:
		return "the agent's DaemonSet is being deleted", nil
	}
	if mode, ok := set.Annotations[CNIAnnotation]; ok && mode != CNIInstall {
		return "the agent's DaemonSet says " + CNIAnnotation + "=" + mode, nil
	}
	// A namespace that is being deleted loses its pods before its DaemonSets.
	namespace, err := d.api.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Get(ctx, d.namespace, metav1.GetOptions{})
	if err == nil && namespace.DeletionTimestamp != nil {
		return "the agent's namespace is being deleted", nil
	}
	return "", nil
}

// fromAPIServer reports whether an error is the API server's own answer, and not that of a proxy on the way.
func fromAPIServer(err error) bool {
	return err != nil && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// chainKeeper puts the CNI plugin into the node's chain and keeps it there.
type chainKeeper interface {
	Start(ctx context.Context) error
	Uninstall() error
}

// keepChain keeps the plugin in the chain. When processCtx ends (on SIGTERM) and no other agent will follow, it removes
// the plugin: no pod starts while the chain calls an agent that does not exist.
func keepChain(processCtx context.Context, log logr.Logger, chain chainKeeper, d *ownDaemonSet) manager.RunnableFunc {
	return func(ctx context.Context) error {
		if err := chain.Start(ctx); err != nil || processCtx.Err() == nil || d == nil {
			return err
		}
		reason, err := d.noSuccessor(context.WithoutCancel(processCtx))
		switch {
		case err != nil:
			log.Error(err, "CNI plugin left in the chain: could not find out whether another agent follows")
		case reason == "":
			log.Info("CNI plugin left in the chain for the next agent")
		default:
			if err := chain.Uninstall(); err != nil {
				log.Error(err, "CNI plugin not taken out of the chain: run `cni uninstall` on the node", "reason", reason)
				return nil
			}
			log.Info("CNI plugin taken out of the chain", "reason", reason)
		}
		return nil
	}
}
