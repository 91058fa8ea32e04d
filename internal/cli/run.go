package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	goruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/nftables"
)

// checkTimeout bounds one readiness check.
const checkTimeout = 2 * time.Second

// Requests a second to the API server, and at once: one patch a pod, with room for a node that starts full.
const (
	apiQPS   = 50
	apiBurst = 200
)

func newRun() *cobra.Command {
	o := &runOptions{}
	cmd := &cobra.Command{
		Use: "run", Short: "Run the node agent", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return err
			}
			logTo(cmd.ErrOrStderr(), o.level)
			logStart(cmd.Flags())
			return run(cmd.Context(), o)
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

func logTo(w io.Writer, level slog.Level) {
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})))
}

func logStart(fs *pflag.FlagSet) {
	flags := map[string]string{}
	fs.VisitAll(func(f *pflag.Flag) { flags[f.Name] = f.Value.String() })
	ctrl.Log.Info("agent started", "version", version(), "flags", flags)
}

// run joins the parts and works until ctx ends.
func run(ctx context.Context, o *runOptions) error {
	backend, err := newBackend(ctx)
	if err != nil {
		return err
	}
	finder, err := newFinder(ctx, o.runtime, o.runtimeEndpoint)
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
	if err := addControllers(mgr, o, backend, finder); err != nil {
		return err
	}
	if err := addChecks(mgr, finder); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func newManager(config *rest.Config, o *runOptions) (manager.Manager, error) {
	scheme := goruntime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Cache: controllers.CacheOptions(o.nodeName),
		Metrics:                metricsserver.Options{BindAddress: o.metricsAddr},
		HealthProbeBindAddress: o.healthAddr,
	})
	if err != nil {
		return nil, fmt.Errorf("make manager: %w", err)
	}
	return mgr, nil
}

func addControllers(mgr manager.Manager, o *runOptions, backend *nftables.Backend, finder runtimeFinder) error {
	ledger := controllers.NewLedger()
	counters, err := controllers.NewMetrics(metrics.Registry, ledger)
	if err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	pods := controllers.Reader{Cache: mgr.GetCache(), Live: mgr.GetAPIReader()}
	writer := controllers.NewWriter(mgr.GetClient(), pods, mgr.GetEventRecorder("istio-pod-network-controller"))
	programmer := &controllers.Programmer{
		Intent: o.config, Backend: backend, BackendName: backend.Name(), Finder: finder, Pods: pods,
		Reporter: writer, Ledger: ledger, Metrics: counters,
	}
	watch := &controllers.PodWatch{Client: mgr.GetCache(), Programmer: programmer}
	return errors.Join(
		watch.SetupWithManager(mgr),
		mgr.Add(writer),
		mgr.Add(&controllers.Sweeper{Programmer: programmer, Interval: o.sweepInterval}),
		addEntrances(mgr, o, entrance{programmer: programmer, pods: pods}),
	)
}

// addChecks makes readyz say whether pods can be looked after: their cache is there, and the runtime answers.
func addChecks(mgr manager.Manager, finder runtimeFinder) error {
	return errors.Join(
		mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("cache", checker(func(ctx context.Context) error {
			if !mgr.GetCache().WaitForCacheSync(ctx) {
				return errors.New("the cache is not synchronized")
			}
			return nil
		})),
		mgr.AddReadyzCheck("runtime", checker(func(ctx context.Context) error {
			_, err := finder.Version(ctx)
			return err
		})),
	)
}

// checker bounds a check in time.
func checker(check func(context.Context) error) healthz.Checker {
	return func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
		defer cancel()
		return check(ctx)
	}
}

// newBackend makes the backend, having made sure that the kernel takes the rules of an ordinary pod.
func newBackend(ctx context.Context) (*nftables.Backend, error) {
	guard, err := netns.NewGuard()
	if err != nil {
		return nil, err
	}
	backend := nftables.New(guard)
	sample, err := iptables.Rules(iptables.DefaultSpec())
	if err != nil {
		return nil, err
	}
	if err := backend.Probe(ctx, sample); err != nil {
		return nil, err
	}
	ctrl.Log.Info("backend chosen", "backend", backend.Name(), "reason", "the kernel takes its rules")
	return backend, nil
}

// runtimeFinder is what the agent needs of a container runtime.
type runtimeFinder interface {
	Find(ctx context.Context, pod podnet.Sandbox) (podnet.Sandbox, error)
	Version(ctx context.Context) (string, error)
	Close() error
}
