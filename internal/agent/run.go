// Package agent is the node agent: it joins the parts and holds their policy. No other package knows every part.
package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	goruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
)

// stopTimeout bounds what is finished when the agent is told to stop. The chart's grace period is a little longer.
const stopTimeout = 15 * time.Second

// Name is the program, as its users and its events name it.
const Name = "istio-pod-network-controller"

// Requests a second to the API server, and at once: one patch a pod, with room for a node that starts full.
const (
	apiQPS   = 50
	apiBurst = 200
)

// Run joins the parts and works until ctx ends.
func Run(ctx context.Context, o Options) error {
	backend, err := newBackend(ctx, o.Backend, metrics.Registry)
	if err != nil {
		return err
	}
	health, err := newHealth(o.HealthAddr)
	if err != nil {
		return err
	}
	finder, err := newFinder(ctx, o.Runtime, o.RuntimeEndpoint)
	if err != nil {
		return err
	}
	defer finder.Close() //nolint:errcheck // the process ends
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	config.QPS, config.Burst = apiQPS, apiBurst
	mgr, err := newManager(config, o)
	if err != nil {
		return err
	}
	ready := &readiness{}
	addChecks(mgr, ready, finder)
	if err := errors.Join(addControllers(ctx, mgr, o, ready, backend, finder), health.addTo(ctx, mgr, ready)); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func newManager(config *rest.Config, o Options) (manager.Manager, error) {
	scheme := goruntime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Cache: controllers.CacheOptions(o.NodeName),
		Metrics:                 metricsserver.Options{BindAddress: o.MetricsAddr, ListenConfig: sharedPort()},
		HealthProbeBindAddress:  "0", // we serve it ourselves
		GracefulShutdownTimeout: new(stopTimeout),
	})
	if err != nil {
		return nil, fmt.Errorf("make manager: %w", err)
	}
	return mgr, nil
}

func addControllers(ctx context.Context, mgr manager.Manager, o Options, ready *readiness, backend Exclusive, finder runtimeFinder) error {
	ledger := controllers.NewLedger()
	counters, err := controllers.NewMetrics(metrics.Registry, ledger)
	if err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	pods := controllers.Reader{Cache: mgr.GetCache(), Live: mgr.GetAPIReader()}
	writer := controllers.NewWriter(mgr.GetClient(), pods, mgr.GetEventRecorder(Name))
	programmer := &controllers.Programmer{
		Intent: o.Intent, Backend: backend, BackendName: backend.Name(), Namespaces: backend, Finder: finder, Pods: pods,
		Reporter: writer, Ledger: ledger, Metrics: counters,
	}
	watch := &controllers.PodWatch{Client: mgr.GetCache(), Programmer: programmer}
	return errors.Join(
		watch.SetupWithManager(mgr),
		mgr.Add(writer),
		mgr.Add(&controllers.Sweeper{Programmer: programmer, Interval: o.SweepInterval}),
		addEntrances(ctx, mgr, o, ready, entrance{programmer: programmer, pods: pods}),
		addStartupTaint(mgr, o, ready),
	)
}

func addStartupTaint(mgr manager.Manager, o Options, ready *readiness) error {
	if !o.StartupTaint {
		return nil
	}
	taint := &controllers.StartupTaint{Nodes: mgr.GetClient(), Node: o.NodeName, Ready: ready.check}
	return taint.SetupWithManager(mgr)
}

// addChecks adds to what readiness means: the cache of pods, and a runtime that answers.
func addChecks(mgr manager.Manager, ready *readiness, finder runtimeFinder) {
	ready.add("cache", cacheFilled(mgr))
	ready.add("runtime", func(ctx context.Context) error {
		_, err := finder.Version(ctx)
		return err
	})
}

// cacheFilled tells whether the agent knows its pods.
func cacheFilled(mgr manager.Manager) func(context.Context) error {
	return func(ctx context.Context) error {
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the cache is not synchronized")
		}
		return nil
	}
}

// newBackend makes the backend of the agent, and says in the log and by a metric which one it is, and why.
func newBackend(ctx context.Context, name string, r prometheus.Registerer) (Exclusive, error) {
	choice, err := newBackendChoice()
	if err != nil {
		return Exclusive{}, err
	}
	info, programs := backendMetrics()
	panics := prometheus.NewCounter(prometheus.CounterOpts{
		Name: controllers.MetricPrefix + "backend_panics_total", Help: "Panics while a pod's namespace was worked on: faults of the agent's, each of which cost one pod its look.",
	})
	if err := errors.Join(r.Register(info), r.Register(programs), r.Register(panics)); err != nil {
		return Exclusive{}, fmt.Errorf("register metrics: %w", err)
	}
	choice.observe = func(_ string, took time.Duration) { programs.WithLabelValues(BackendIptables).Observe(took.Seconds()) }
	choice.panicked = func(ctx context.Context, p *netns.PanicError) {
		panics.Inc()
		logr.FromContextOrDiscard(ctx).Error(p, "backend panicked", "stack", string(p.Stack))
	}
	backend, reason, err := choice.choose(ctx, name)
	if err != nil {
		return Exclusive{}, fmt.Errorf("--backend %s: %w", name, err)
	}
	info.WithLabelValues(backend.Name()).Set(1)
	ctrl.Log.Info("backend chosen", "backend", backend.Name(), "reason", reason)
	return backend, nil
}

// backendMetrics tell which backend is at work, and what the processes cost that it starts.
func backendMetrics() (info *prometheus.GaugeVec, programs *prometheus.HistogramVec) {
	info = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: controllers.MetricPrefix + "backend_info", Help: "1 for the backend that programs the kernel.",
	}, []string{"backend"})
	programs = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: controllers.MetricPrefix + "exec_duration_seconds", Help: "Time that processes took which the backend started.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 12), // 1 ms to 2 s
	}, []string{"backend"})
	return info, programs
}

// runtimeFinder is what the agent needs of a container runtime.
type runtimeFinder interface {
	Find(ctx context.Context, pod podnet.Sandbox) (podnet.Sandbox, error)
	Version(ctx context.Context) (string, error)
	Close() error
}
