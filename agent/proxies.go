//go:build !nosidecars

package agent

import (
	"context"
	"errors"
	"io"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/diagnostics/inspectserver"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/iptables/parking"
	"istio-pod-network-controller/runtime/cri"
	"istio-pod-network-controller/runtime/nri"
	"istio-pod-network-controller/sidecars/node"
)

// proxies has the proxies that the agent runs finish with their applications.
type proxies interface {
	ContainerEnded(ctx context.Context, s podnet.Sandbox, ended sidecar.Application) error
}

// addProxies has an agent run proxies. It returns nil if that is not switched on. join has the core follow them.
func addProxies(a *agent, mgr manager.Manager, pods controllers.Reader, event func(s podnet.Sandbox, reason, message string)) (
	p proxies, join func(*controllers.Programmer), err error,
) {
	if !a.Sidecars {
		return nil, func(*controllers.Programmer) {}, nil
	}
	finder, ok := a.finder.(*cri.Finder)
	if !ok {
		return nil, nil, errors.New("--sidecars needs a container runtime that serves CRI: containerd or CRI-O")
	}
	added, err := node.Add(mgr, a.metrics, node.Config{
		Node: a.NodeName, AgentNamespace: a.Intent.AgentNamespace, Pod: a.PodName, Runtime: finder.Connection(), Namespaces: a.backends.Namespaces, Pods: pods, Event: event,
		Root: a.SidecarRoot, SharedRoot: a.SharedRoot, Profiles: a.SidecarProfiles, Secrets: a.SidecarSecrets, TokenAudiences: a.SidecarTokenAudiences,
	})
	if err != nil {
		return nil, nil, err
	}
	lot := parking.New(a.backends.Namespaces)
	join = func(p *controllers.Programmer) {
		added.Join(p)
		p.Parking = lot
	}
	return added, join, registerParked(a.metrics, lot)
}

// registerParked counts the connections that were parked.
func registerParked(r prometheus.Registerer, lot *parking.Lot) error {
	return errors.Join(
		r.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: controllers.MetricPrefix + "parked_connections_total", Help: "Connections that were open before the managed proxy listened, and were handed over to it.",
		}, func() float64 { return float64(lot.Counts().HandedOver) })),
		r.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: controllers.MetricPrefix + "parked_connections_reset_total", Help: "Connections that were open before the managed proxy listened, and were reset as it has not come in time.",
		}, func() float64 { return float64(lot.Counts().Reset) })),
	)
}

// newProxyAccess returns what reaches the node's proxies, or nil if the agent runs none.
func newProxyAccess(a *agent) inspectserver.ProxyAccess {
	finder, ok := a.finder.(*cri.Finder)
	if !ok || !a.Sidecars {
		return nil
	}
	return nodeProxies{finder}
}

// nodeProxies reaches proxies by the container runtime and the kubelet's directory of logs.
type nodeProxies struct{ finder *cri.Finder }

// Log prints a proxy's log.
func (nodeProxies) Log(ctx context.Context, namespace, pod string, o inspect.LogOptions, w io.Writer) error {
	return node.Log{Root: node.DefaultLogRoot, Namespace: namespace, Pod: pod, Previous: o.Previous, Follow: o.Follow, Times: o.Times, Tail: o.Tail}.Print(ctx, w)
}

// Exec runs a command in a proxy.
func (p nodeProxies) Exec(ctx context.Context, namespace, pod string, command []string, out, errOut io.Writer) (code int, err error) {
	return node.Exec{Namespace: namespace, Pod: pod, Command: command, Timeout: inspectserver.ExecTime}.Run(ctx, p.finder.Connection(), out, errOut)
}

// proxyKinds are the kinds that the proxies need before the first pod is worked on.
func proxyKinds(o Options) []client.Object {
	if !o.Sidecars {
		return nil
	}
	return node.Kinds()
}

// keptProxyName is keptName for the kinds of proxies.
func keptProxyName(kind runtime.Object) string {
	if _, ok := kind.(*v1alpha1.ProxyProfile); ok {
		return "proxyprofiles"
	}
	return ""
}

// mapProxyKinds maps the kinds of proxies: see knownKinds.
func mapProxyKinds(known *meta.DefaultRESTMapper) {
	known.Add(v1alpha1.GroupVersion().WithKind("ProxyProfile"), meta.RESTScopeRoot)
	known.Add(v1alpha1.GroupVersion().WithKind("ManagedProxy"), meta.RESTScopeNamespace)
}

// addProxyKinds has clients know the kinds of objects of proxies.
func addProxyKinds(scheme *runtime.Scheme) error { return v1alpha1.AddToScheme(scheme) }

// stopped has the proxies of a pod finish with its application. The runtime waits for the answer.
func (e ensurer) stopped(ctx context.Context, s podnet.Sandbox, c nri.Container) error {
	core, err := e.core.get()
	if err != nil || core.managed == nil {
		return nil //nolint:nilerr // the agent is starting: the proxy goes with the sandbox
	}
	of := sidecar.Application{ID: c.ID, Name: c.Name, State: sidecar.Running, ExitCode: c.ExitCode}
	if c.Ended {
		of.State = sidecar.Exited
	}
	return core.managed.ContainerEnded(ctx, s, of)
}
