package node

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/runtime/container"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/shared"
)

const (
	// sharedCheckTimeout bounds the check of a shared proxy's new configuration.
	sharedCheckTimeout = 10 * time.Second
	// maxCheckOutput bounds what is kept of what a check prints: of each stream, the end, where programs say why they give up.
	maxCheckOutput = 16 << 10
)

// addShared adds the manager of the proxies that the node's pods share. An empty --shared-root switches it off.
func addShared(mgr manager.Manager, r prometheus.Registerer, c Config, to *Proxies, runtime *container.Runtime) error {
	if c.SharedRoot == "" {
		return nil
	}
	if err := home.InMemory(c.SharedRoot); err != nil {
		return fmt.Errorf("--shared-root: %w", err)
	}
	m := shared.New(shared.Config{
		Cluster: to.cluster, Proxies: sharedContainers{runtime, c.AgentNamespace},
		Sandboxes: sharedSandboxes{runtime: runtime, namespaces: c.Namespaces, directories: netnsDirectories()},
		Reporter:  sharedReporter{to.reports}, Root: c.SharedRoot, Node: c.Node, Hold: to.cluster.routes.holds,
	})
	to.shared = m
	metrics := newSharedMetrics(m.Figures)
	m.Changed = metrics.observe
	if err := r.Register(metrics); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return mgr.Add(m)
}

// sharedContainers reaches the containers of shared proxies. Their pods are in the agent's own namespace, in which nobody else makes any.
type sharedContainers struct {
	*container.Runtime
	namespace string
}

// Find returns the running containers of a profile's proxy, that of the oldest pod first, or sidecar.ErrGone.
func (c sharedContainers) Find(ctx context.Context, profile string) ([]sidecar.Container, error) {
	return c.Shared(ctx, c.namespace, profile)
}

// Check runs a command in a proxy's container. ok reports whether it ended with code 0. A command that takes too long is
// context.DeadlineExceeded.
func (c sharedContainers) Check(ctx context.Context, id string, command []string) (output string, ok bool, err error) {
	printed, err := c.Exec(ctx, id, command, sharedCheckTimeout)
	if grpcstatus.Code(err) == codes.DeadlineExceeded { // the runtime has noticed first
		return "", false, fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	if err != nil {
		return "", false, err
	}
	return string(lastOf(printed.Out)) + string(lastOf(printed.Err)), printed.Code == 0, nil
}

func lastOf(text []byte) []byte { return text[max(0, len(text)-maxCheckOutput):] }

// sharedReporter shows the proxies of pods that have chosen a shared one.
type sharedReporter struct{ *sidecarReports }

// Forget does nothing: the pod may have chosen another proxy. Once it is gone, the Programmer says so.
func (sharedReporter) Forget(string) {}

// Retract takes back what was shown of a pod, unless it has a proxy of its own.
func (r sharedReporter) Retract(podUID string) {
	if c := r.chose(podUID); !c.chosen || c.shared {
		r.sidecarReports.Retract(podUID)
	}
}

// ownReporter shows the proxies of pods that have one of their own.
type ownReporter struct{ *sidecarReports }

// Report does nothing if the pod has a shared proxy: its own one ends.
func (r ownReporter) Report(s podnet.Sandbox, status sidecars.Status) {
	if !r.chose(s.UID).shared {
		r.sidecarReports.Report(s, status)
	}
}

// Retract takes back what was shown of a pod, unless it has a shared proxy.
func (r ownReporter) Retract(podUID string) {
	if !r.chose(podUID).shared {
		r.sidecarReports.Retract(podUID)
	}
}
