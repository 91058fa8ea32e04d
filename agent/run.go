// Package agent is the node agent: it connects the other packages and decides how they work together. No other package knows all of them.
package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/diagnostics/inspectserver"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/selfreport"
	"istio-pod-network-controller/internal/serving"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/runtime/nri"
)

// stopTimeout bounds the work after the agent is told to stop. The chart's grace period is a little longer.
const stopTimeout = 40 * time.Second

// Name is the program's name, as its users and its events show it.
const Name = "istio-pod-network-controller"

// Requests to the API server: a second, and at once. They allow one patch for each pod of a node that starts full.
const (
	apiQPS   = 50
	apiBurst = 200
)

// Run starts the agent and works until ctx ends:
//
//   - health starts at once, and the hooks when this agent may serve; until it has read its pods, it refuses there;
//   - the API server is tried until it answers;
//   - then the manager runs the rest. When one part fails or ctx ends, all parts end.
func Run(ctx context.Context, o Options) error {
	if err := metrics.Registry.Register(o.Build.metric()); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	backend, err := newBackend(ctx, o.Backend, metrics.Registry)
	if err != nil {
		return err
	}
	finder, err := awaitFinder(ctx, runtimeStartTimeout, func(ctx context.Context) (runtimeFinder, error) {
		return newFinder(ctx, o.Runtime, o.RuntimeEndpoint)
	})
	if err != nil {
		return err
	}
	defer finder.Close() //nolint:errcheck // the process ends
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	config.QPS, config.Burst = apiQPS, apiBurst
	a := &agent{Options: o, core: newCoreHolder(), ready: &readiness{}, backends: backend, finder: finder, metrics: metrics.Registry}
	if err := a.core.open(o); err != nil {
		return err
	}
	return a.run(ctx, config)
}

// agent is what the agent's parts share.
type agent struct {
	Options
	core       *coreHolder
	ready      *readiness
	backends   kernel.Backend
	metrics    prometheus.Registerer
	collectors []prometheus.Collector // of the hooks, see registerMetrics
	finder     runtimeFinder
	announcers []func() bool // see controllers.Programmer.Announcers
	nriHook    *nri.Hook     // nil: NRI is off
	early      []hook        // the early hooks that are switched on
	cniState   cniState
	inspect    atomic.Pointer[agentstatus.Inspect] // where the agent answers `inspect`; nil: nowhere
	selfReport *selfreport.Report                  // nil: the agent does not know its pod
	ports      serving.Ports
}

func (a *agent) run(processCtx context.Context, config *rest.Config) error {
	a.addChecks()
	hooks, err := a.earlyHooks()
	if err != nil {
		return err
	}
	if err := registerMetrics(a.metrics, a.core, a.ready, a.hooks(), a.collectors); err != nil {
		return err
	}
	health, err := newHealth(a.HealthAddr)
	if err != nil {
		return err
	}
	stopHealth, err := health.serve(processCtx, a.ready, &a.ports)
	if err != nil {
		return err
	}
	defer stopHealth()
	stopMetrics, err := a.serveMetrics(processCtx, &a.ports, config)
	if err != nil {
		return err
	}
	defer stopMetrics()
	defer servePprof(processCtx, &a.ports, a.PprofAddr)()
	defer a.inspector().Serve(processCtx, config)()
	addCNI := func(mgr manager.Manager, p *controllers.Programmer) error {
		return a.cniState.add(processCtx, a.Options, a.metrics, mgr, p)
	}
	group, ctx := errgroup.WithContext(processCtx) // the first that fails ends the others
	for _, e := range hooks {
		group.Go(func() error { return e(logr.NewContext(ctx, ctrl.Log)) })
	}
	group.Go(func() error { return a.manage(ctx, config, addCNI) })
	return group.Wait()
}

// manage runs everything that needs the API server, which may be away.
func (a *agent) manage(ctx context.Context, config *rest.Config, addCNI func(manager.Manager, *controllers.Programmer) error) error {
	mgr, err := newManager(config, a.Options, a.core, ctx.Done())
	if err != nil {
		return err
	}
	c, err := a.addControllers(mgr)
	if err != nil {
		return err
	}
	if err := addCNI(mgr, c.programmer); err != nil {
		return err
	}
	synced := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		err := setCoreOnceSynced(ctx, mgr.GetCache(), a.core, c, proxyKinds(a.Options)...)
		if err != nil && ctx.Err() == nil {
			cancel()
		} else {
			err = nil
		}
		synced <- err
	}()
	var reporting sync.WaitGroup
	if a.selfReport != nil { // it does not wait for the caches: an agent that cannot fill them says so
		reporting.Go(func() { a.selfReport.Start(ctx) })
	}
	err = mgr.Start(ctx)
	cancel()
	reporting.Wait()
	return errors.Join(err, <-synced)
}

func (a *agent) addControllers(mgr manager.Manager) (core, error) {
	ledger := controllers.NewLedger()
	counters, err := controllers.NewMetrics(a.metrics, ledger)
	if err != nil {
		return core{}, fmt.Errorf("register metrics: %w", err)
	}
	pods := controllers.Reader{Cache: mgr.GetCache(), Live: mgr.GetAPIReader(), Kubelet: &a.core.source}
	if a.ReadAsNode {
		pods.Live = controllers.PodsOfNode(a.NodeName, pods.Live)
	}
	writer := controllers.NewWriter(mgr.GetClient(), pods, mgr.GetEventRecorder(Name))
	writer.Away = func() bool { return a.core.contact.Err() != nil }
	writer.Lags = a.core.source.fromKubelet
	if a.PodName != "" {
		s := selfStatus{build: a.Build, backend: a.backends.Name(), podsFrom: a.core.podsFrom, ready: a.ready, hooks: a.hooks(), inspect: &a.inspect}
		own := types.NamespacedName{Namespace: a.Intent.AgentNamespace, Name: a.PodName}
		if a.selfReport, err = newSelfReport(mgr, own, a.metrics, s, writer); err != nil {
			return core{}, err
		}
	}
	managed, join, err := addProxies(a, mgr, pods, writer.ProxyEvent)
	if err != nil {
		return core{}, fmt.Errorf("set up the proxy manager: %w", err)
	}
	programmer := &controllers.Programmer{
		Config: a.Intent, Backend: a.backends, BackendName: a.backends.Name(), Namespaces: a.backends, Finder: a.finder, Starts: a.finder, Pods: pods,
		Reporter: writer, Ledger: ledger, Metrics: counters, Announcers: a.announcers,
		VerifyInterval: a.VerifyInterval, Listeners: a.backends.Namespaces, Contact: &a.core.contact, Kept: a.core.kept.Since, RequireProxies: a.RequireProxies,
	}
	join(programmer)
	watch := controllers.NewPodWatch(mgr.GetCache(), programmer)
	return core{programmer: programmer, pods: pods, managed: managed}, errors.Join(
		watch.SetupWithManager(mgr),
		mgr.Add(writer), mgr.Add(a.core.kept), mgr.Add(manager.RunnableFunc(releaseStartPages)),
		addEarlyHook(mgr, a.Options, a.nriHook),
		addStartupTaint(mgr, a.Options, a.ready),
	)
}

func addStartupTaint(mgr manager.Manager, o Options, ready *readiness) error {
	if !o.StartupTaint {
		return nil
	}
	taint := &controllers.StartupTaint{Nodes: mgr.GetClient(), Node: o.NodeName, Key: o.StartupTaintKey, Ready: ready.serves}
	return taint.SetupWithManager(mgr)
}

// inspector returns what answers `inspect`.
func (a *agent) inspector() inspectserver.Server {
	about := func() inspect.Agent {
		pods := a.core.source.state()
		return inspect.Agent{
			Version: a.Build.Version, Revision: a.Build.Revision, Backend: a.backends.Name(), PodsFrom: string(pods.From), KubeletHeard: pods.Heard,
			VerifyInterval: a.VerifyInterval.String(), RunsProxies: a.Sidecars,
		}
	}
	look := inspectserver.NewLooker(a.NodeName, a.Intent.AgentNamespace, about, a.backends.Apart(), a.core.looked)
	out := inspectserver.Server{Name: Name, Look: look, Ports: &a.ports, At: &a.inspect, Proxies: newProxyAccess(a)}
	if a.InspectAddr != "0" {
		out.Addr = a.InspectAddr
	}
	if h, err := newHealth(a.HealthAddr); err == nil && h.network == "unix" { // where health is served on a port, there is no such directory
		out.Socket = filepath.Join(filepath.Dir(h.address), filepath.Base(inspect.DefaultSocket))
	}
	return out
}

// addChecks adds to readiness that the caches of pods and namespaces are filled, that the container runtime answers, and that ports are served.
func (a *agent) addChecks() {
	runtime := func(ctx context.Context) error {
		_, err := a.finder.Version(ctx)
		return err
	}
	a.ready.add(
		part{name: "cache", check: a.core.current, note: a.core.note}, part{name: "runtime", check: runtime},
		part{name: "ports", check: a.ports.Check, forPeople: true},
	)
}

// newBackend makes the agent's backend. The log and a metric say which one it is; the log also says why.
func newBackend(ctx context.Context, name string, r prometheus.Registerer) (kernel.Backend, error) {
	info, programs := backendMetrics()
	panics := prometheus.NewCounter(prometheus.CounterOpts{
		Name: controllers.MetricPrefix + "backend_panics_total", Help: "Panics of the agent while it worked in a pod's namespace. Each is a bug, and fails one call for one pod.",
	})
	if err := errors.Join(r.Register(info), r.Register(programs), r.Register(panics)); err != nil {
		return kernel.Backend{}, fmt.Errorf("register metrics: %w", err)
	}
	observe := func(_ string, took time.Duration) { programs.WithLabelValues(kernel.Iptables).Observe(took.Seconds()) }
	panicked := func(ctx context.Context, p *netns.PanicError) {
		panics.Inc()
		logr.FromContextOrDiscard(ctx).Error(p, "backend panicked", "stack", string(p.Stack))
	}
	choice, err := kernel.NewChoice(observe, panicked)
	if err != nil {
		return kernel.Backend{}, err
	}
	backend, reason, err := choice.Choose(ctx, name)
	if err != nil {
		return kernel.Backend{}, fmt.Errorf("--backend %s: %w", name, err)
	}
	info.WithLabelValues(backend.Name()).Set(1)
	ctrl.Log.Info("backend chosen", "backend", backend.Name(), "reason", reason)
	return backend, nil
}

// backendMetrics returns a metric of the backend in use, and one of the time that its processes take.
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

// metric returns a metric that shows the build.
func (b Build) metric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: controllers.MetricPrefix + "build_info", Help: "1, with the release, the commit and Go's version as labels.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Revision, "goversion": goruntime.Version()},
	}, func() float64 { return 1 })
}

// runtimeFinder is what the agent needs of a container runtime.
type runtimeFinder interface {
	controllers.Finder
	controllers.Starts
	Version(ctx context.Context) (string, error)
	Close() error
}
