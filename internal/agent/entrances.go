package agent

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/runtime/nri"
)

// entrance hands sandboxes that others tell of to the Programmer.
type entrance struct {
	by         controllers.Entrance
	programmer *controllers.Programmer
	pods       controllers.Reader
	failOpen   bool
}

// Ensure programs a sandbox, or finds that it needs nothing. Its error refuses the pod.
func (e entrance) Ensure(ctx context.Context, s podnet.Sandbox) (asked bool, err error) {
	result, err := e.programmer.Ensure(ctx, e.by, s)
	return result != controllers.Skipped, err
}

// Forget drops a sandbox that is gone.
func (e entrance) Forget(sandboxID string) { e.programmer.Forget(sandboxID) }

// addEntrances registers what tells the agent of sandboxes beside the API server. ctx ends when the process is told to.
func addEntrances(ctx context.Context, mgr manager.Manager, o Options, ready *readiness, e entrance) error {
	e.failOpen = o.FailOpen
	return errors.Join(addNRI(mgr, o, ready, e), addCNI(ctx, mgr, o, ready, e))
}

func addNRI(mgr manager.Manager, o Options, ready *readiness, e entrance) error {
	if o.NRI.Mode == NRIOff {
		return nil
	}
	e.by = controllers.NRI
	guard, err := netns.NewGuard()
	if err != nil {
		return err
	}
	calls := nriCalls()
	n, err := nri.New(nri.Config{
		Socket: o.NRI.Socket, Name: o.NRI.Name, Index: o.NRI.Index, Handler: e, Required: o.NRI.Mode == NRIRequired, FailOpen: o.FailOpen,
		PassNamespaces: o.untouched(), IsHost: guard.IsHost,
		Observe: func(call string, outcome nri.Outcome, took time.Duration) {
			calls.WithLabelValues(call, string(outcome)).Observe(took.Seconds())
		},
	})
	if err != nil {
		return err
	}
	connected := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: controllers.MetricPrefix + "nri_connected", Help: "1 while the container runtime asks the agent before containers start.",
	}, func() float64 { return map[bool]float64{true: 1}[n.Connected()] })
	ready.add("nri", n.Check)
	e.programmer.Told = append(e.programmer.Told, n.Connected)
	return errors.Join(
		metrics.Registry.Register(connected), metrics.Registry.Register(calls),
		mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { return n.Start(logr.NewContext(ctx, ctrl.Log)) })),
	)
}

// nriCalls tell how long the runtime, which asks for one pod at a time, is held.
func nriCalls() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: controllers.MetricPrefix + "nri_call_duration_seconds", Help: "Time for which a call held the container runtime, by what it came to.",
		Buckets: prometheus.ExponentialBuckets(0.00001, 1.6, 25), // 10 µs to 0.8 s
	}, []string{"call", "result"})
}
