package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/runtime/cni"
	"istio-pod-network-controller/runtime/nri"
)

// ensurer passes sandboxes from NRI and the CNI chain to the Programmer.
type ensurer struct {
	by       controllers.Hook
	core     *coreHolder
	failOpen bool
}

// Ensure programs a sandbox and reports whether its pod asks for rules. An error refuses the pod.
func (e ensurer) Ensure(ctx context.Context, s podnet.Sandbox) (asked bool, err error) {
	core, err := e.core.get()
	if err != nil {
		return false, err
	}
	result, err := core.programmer.Ensure(ctx, e.by, s)
	return result != controllers.Skipped, err
}

// creating has connections wait for the pod's proxy once its container is made.
func (e ensurer) creating(ctx context.Context, s podnet.Sandbox, container string) error {
	core, err := e.core.get()
	if err != nil {
		return err
	}
	return core.programmer.Creating(ctx, s, container)
}

// hostNetwork reports whether the pod is on the host's network, according to the API server. known is false if the pod was not found.
func (e ensurer) hostNetwork(ctx context.Context, s podnet.Sandbox) (hostNetwork, known bool) {
	core, err := e.core.get()
	if err != nil {
		return false, false
	}
	pod, err := core.pods.Pod(ctx, s)
	if err != nil {
		return false, false
	}
	return pod.Spec.HostNetwork, true
}

// staticPods reports whether static pods are known by the UID that the runtime has: the kubelet gives them, and the agent has read its pods.
func (e ensurer) staticPods() bool {
	return e.core.isSet() && e.core.source.fromKubelet()
}

// runnable is a part of the agent that runs until its ctx ends.
type runnable func(context.Context) error

// hook is one way by which the agent learns of sandboxes.
type hook struct {
	by controllers.Hook
	up func() bool
	// state returns what is wrong, for people.
	state func(context.Context) error
}

// hooks returns the hooks that are switched on. An early hook that the runtime does not offer is down although the agent is ready.
func (a *agent) hooks() []hook {
	watch := hook{by: controllers.Watch, up: func() bool { return a.core.watches() == nil }, state: a.core.watched}
	return append([]hook{watch}, a.early...)
}

// earlyHooks returns the runnables of NRI and CNI. They can start before the API server is reached; see doorway.
func (a *agent) earlyHooks() ([]runnable, error) {
	nri, errNRI := a.newNRI()
	cni, errCNI := a.newCNI()
	return append(nri, cni...), errors.Join(errNRI, errCNI)
}

func (a *agent) newNRI() ([]runnable, error) {
	if a.NRI.Mode == NRIOff {
		return nil, nil
	}
	e := ensurer{by: controllers.NRI, core: a.core, failOpen: a.FailOpen}
	guard, err := netns.NewGuard()
	if err != nil {
		return nil, err
	}
	stopped := e.stopped
	if !a.Sidecars {
		stopped = nil
	}
	observe, counters := observeNRI(a.FailOpen)
	a.collectors = append(a.collectors, counters...)
	n, err := nri.New(nri.Config{
		Socket: a.NRI.Socket, Name: a.NRI.Name, Index: a.NRI.Index, Handler: e, Required: a.NRI.Mode == NRIRequired, FailOpen: a.FailOpen,
		Creating: e.creating, StaticPods: e.staticPods,
		PassNamespaces: a.passNamespaces(), IsHost: guard.IsHost, HostNetwork: e.hostNetwork, Stopped: stopped,
		Observe: observe,
	})
	if err != nil {
		return nil, err
	}
	door := newDoorway(cmp.Or(a.NRI.Socket, nri.DefaultSocket), a.core, n.Connected)
	served := door.check(n.Check)
	a.nriHook = n
	a.early = append(a.early, hook{by: controllers.NRI, up: n.Connected, state: func(ctx context.Context) error {
		err := served(ctx)
		if err == nil && !n.Connected() { // Check passes then only if NRI is not required
			err = errors.New("the container runtime offers no NRI")
		}
		return err
	}})
	a.ready.add(part{name: "nri", check: served, note: func() string {
		if offered, _ := n.Offered(); !offered {
			return "not offered"
		}
		return ""
	}})
	a.ready.liveCheck = n.Live
	a.announcers = append(a.announcers, n.Connected)
	a.collectors = append(a.collectors,
		gaugeOf(controllers.MetricPrefix+"nri_connected", "1 while the container runtime asks the agent before containers start.", nil, n.Connected),
		gaugeOf(controllers.MetricPrefix+"nri_offered", "1 while the container runtime listens for NRI plugins.", nil, func() bool { offered, _ := n.Offered(); return offered }),
	)
	return []runnable{door.guard(n.Start)}, nil
}

// newCNI makes the server of the socket that the plugin calls.
func (a *agent) newCNI() ([]runnable, error) {
	if a.CNI == CNIOff {
		return nil, nil
	}
	a.Chain.Plugin.ExcludeNamespaces = slices.Concat(a.Chain.Plugin.ExcludeNamespaces, a.passNamespaces())
	a.ready.add(part{name: "cni", check: a.cniState.Check})
	if a.CNI == CNIUninstall {
		return nil, nil
	}
	handler := cniHook{
		ensurer: ensurer{by: controllers.CNI, core: a.core, failOpen: a.FailOpen}, calls: &a.cniState.calls,
		letThrough: failOpenMetric(controllers.CNI), requests: cniRequests(),
	}
	a.collectors = append(a.collectors, handler.letThrough, handler.requests)
	server, err := cni.NewServer(cni.Config{
		Path: a.Chain.Plugin.Socket, Handler: handler, Concurrency: 2 * maxAwaiting,
		Ready: a.core.check, Log: slog.New(logr.ToSlogHandler(ctrl.Log)),
	})
	if err != nil {
		return nil, fmt.Errorf("make CNI socket: %w", err)
	}
	door := newDoorway(a.Chain.Plugin.Socket, a.core, func() bool { return server.Check() == nil })
	a.cniState.server, a.cniState.served = server, door.check(func(context.Context) error { return server.Check() })
	a.early = append(a.early, hook{by: controllers.CNI, up: a.cniState.up, state: a.cniState.Check})
	return []runnable{door.guard(server.Start)}, nil
}

// nriCalls returns a metric of how long calls hold the runtime, which calls for one pod at a time.
func nriCalls() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: controllers.MetricPrefix + "nri_call_duration_seconds", Help: "Time for which a call of the container runtime was under way, by call and result.",
		Buckets: prometheus.ExponentialBuckets(0.00001, 1.6, 25), // 10 µs to 0.8 s
	}, []string{"call", "result"})
}
