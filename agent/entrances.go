package agent

import (
	"cmp"
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/runtime/nri"
)

// entrance passes sandboxes from NRI and the CNI chain to the Programmer.
type entrance struct {
	by       controllers.Entrance
	core     *coreHolder
	failOpen bool
	// letThrough is called for each pod that failOpen lets through; it may be nil.
	letThrough func()
}

// Ensure programs a sandbox and reports whether its pod asks for rules. An error refuses the pod.
func (e entrance) Ensure(ctx context.Context, s podnet.Sandbox) (asked bool, err error) {
	core, err := e.core.get()
	if err != nil {
		return false, err
	}
	result, err := core.programmer.Ensure(ctx, e.by, s)
	return result != controllers.Skipped, err
}

// hostNetwork reports whether the pod is on the host's network, according to the API server. known is false if the pod was not found.
func (e entrance) hostNetwork(ctx context.Context, s podnet.Sandbox) (hostNetwork, known bool) {
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

// runnable is a part of the agent that runs until its ctx ends.
type runnable func(context.Context) error

// entrances returns the runnables of NRI and CNI. They can start before the API server is reached; see doorway.
func (a *agent) entrances() ([]runnable, error) {
	nri, errNRI := a.newNRI()
	cni, errCNI := a.newCNI()
	return append(nri, cni...), errors.Join(errNRI, errCNI)
}

func (a *agent) newNRI() ([]runnable, error) {
	if a.NRI.Mode == NRIOff {
		return nil, nil
	}
	e := entrance{by: controllers.NRI, core: a.core, failOpen: a.FailOpen}
	guard, err := netns.NewGuard()
	if err != nil {
		return nil, err
	}
	stopped := e.stopped
	if !a.Sidecars {
		stopped = nil
	}
	n, err := nri.New(nri.Config{
		Socket: a.NRI.Socket, Name: a.NRI.Name, Index: a.NRI.Index, Handler: e, Required: a.NRI.Mode == NRIRequired, FailOpen: a.FailOpen,
		PassNamespaces: a.passNamespaces(), IsHost: guard.IsHost, HostNetwork: e.hostNetwork, Stopped: stopped,
		Observe: a.observeNRI(),
	})
	if err != nil {
		return nil, err
	}
	door := newDoorway(cmp.Or(a.NRI.Socket, nri.DefaultSocket), a.core, n.Connected)
	a.nriEntrance, a.nriServed = n, door.check(n.Check)
	a.ready.addWithNote("nri", a.nriServed, func() string {
		if offered, _ := n.Offered(); !offered {
			return "not offered"
		}
		return ""
	})
	a.ready.addLive(n.Live)
	a.announcers = append(a.announcers, n.Connected)
	return []runnable{door.guard(n.Start)}, registerGauges(a.metrics, n)
}

// registerGauges adds the metrics that show whether the runtime offers NRI, and whether it calls the agent.
func registerGauges(r prometheus.Registerer, n *nri.Entrance) error {
	number := map[bool]float64{true: 1}
	return errors.Join(
		r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: controllers.MetricPrefix + "nri_connected", Help: "1 while the container runtime asks the agent before containers start.",
		}, func() float64 { return number[n.Connected()] })),
		r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: controllers.MetricPrefix + "nri_offered", Help: "1 while the container runtime listens for NRI plugins.",
		}, func() float64 { offered, _ := n.Offered(); return number[offered] })),
	)
}

// nriCalls returns a metric of how long calls hold the runtime, which calls for one pod at a time.
func nriCalls() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: controllers.MetricPrefix + "nri_call_duration_seconds", Help: "Time for which a call of the container runtime was under way, by call and result.",
		Buckets: prometheus.ExponentialBuckets(0.00001, 1.6, 25), // 10 µs to 0.8 s
	}, []string{"call", "result"})
}
