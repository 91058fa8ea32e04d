package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/runtime/cni"
	"istio-pod-network-controller/runtime/cniinstall"
)

// chain is the entrance by the CNI chain, whose runtimes do not always tell the pod's UID.
type chain struct {
	entrance
	calls *cniinstall.Calls
}

// Add programs a sandbox before its containers exist. A pod that the API server does not know is a static one, or is
// deleted already.
func (c chain) Add(ctx context.Context, s podnet.Sandbox) error {
	c.calls.Heard(s.Pod(), time.Now())
	_, err := c.ensure(ctx, s)
	return err
}

// Check repairs what is missing. It fails only where the pod asks for rules, has none, and they could not be put in: CRI-O takes
// the address from a sandbox whose CHECK fails, and the kubelet then kills the pod.
func (c chain) Check(ctx context.Context, s podnet.Sandbox) error {
	known, err := c.ensure(ctx, s)
	if err == nil || c.missing(ctx, known) {
		return err
	}
	ctrl.Log.Info("CHECK passed without a repair", "entrance", c.by, "pod", s.Pod(), "sandbox", s.ID, "reason", err.Error())
	return nil
}

// missing reports whether a pod that asks for rules, or asks in a way that cannot be followed, is known to have none.
func (c chain) missing(ctx context.Context, s podnet.Sandbox) bool {
	_, errPod := c.programmer.Pods.Pod(ctx, s)
	_, errNamespace := c.programmer.Pods.Namespace(ctx, s.Namespace)
	if errPod != nil || errNamespace != nil {
		return false // most pods ask for nothing
	}
	present, err := c.programmer.Backend.Present(ctx, s.Place())
	return err == nil && !present
}

// Del forgets a sandbox; its rules went with its namespace.
func (c chain) Del(_ context.Context, s podnet.Sandbox) error {
	c.Forget(s.ID)
	return nil
}

// ensure gives the sandbox with its pod's UID.
func (c chain) ensure(ctx context.Context, s podnet.Sandbox) (podnet.Sandbox, error) {
	if s.UID == "" {
		uid, err := c.pods.UID(ctx, s.Namespace, s.Name)
		if err != nil {
			return s, c.verdict(err)
		}
		s.UID = uid
	}
	_, err := c.programmer.Ensure(ctx, c.by, s)
	return s, c.verdict(err)
}

func (c chain) verdict(err error) error {
	if errors.Is(err, podnet.ErrNoPod) {
		return nil
	}
	if err != nil && c.failOpen {
		ctrl.Log.Error(err, "pod let through without its rules", "entrance", c.by)
		return nil
	}
	return err
}

func addCNI(ctx context.Context, mgr manager.Manager, o Options, ready *readiness, e entrance) error {
	o.Chain.Plugin.ExcludeNamespaces = append(o.Chain.Plugin.ExcludeNamespaces, o.untouched()...)
	tell := nodeEvents(mgr.GetEventRecorder(Name), o.NodeName)
	switch o.CNI {
	case CNIInstall:
		return addChain(ctx, mgr, o, ready, e, tell)
	case CNIUninstall:
		return addClear(mgr, o, ready, tell)
	}
	return nil
}

// addChain registers the socket, what keeps the plugin in the chain, and what notices that nobody calls it.
func addChain(ctx context.Context, mgr manager.Manager, o Options, ready *readiness, e entrance, tell func(cniinstall.Event)) error {
	e.by = controllers.CNI
	calls := &cniinstall.Calls{}
	server, err := cni.NewServer(cni.Config{
		Path: o.Chain.Plugin.Socket, Handler: chain{e, calls}, Ready: cacheFilled(mgr), Log: slog.New(logr.ToSlogHandler(ctrl.Log)),
	})
	if err != nil {
		return fmt.Errorf("make CNI socket: %w", err)
	}
	installer, err := o.Chain.Installer(ctrl.Log, tell)
	if err != nil {
		return fmt.Errorf("make CNI installer: %w", err)
	}
	home, err := newHome(mgr.GetConfig(), o.Intent.AgentNamespace, o.DaemonSet)
	if err != nil {
		return err
	}
	watch := &callWatch{
		pods: mgr.GetCache(), calls: calls, excluded: o.Chain.Plugin.Excludes,
		serving: func() bool { return installer.Chained() && server.Served() },
		tell: func(err error) {
			e := cniinstall.Event{Kind: cniinstall.NotCalled, Path: o.Chain.ConfDir, Err: err}
			logCNI(ctrl.Log, e)
			tell(e)
		},
	}
	e.programmer.Told = append(e.programmer.Told, installer.Chained)
	ready.add("cni", func(context.Context) error { return errors.Join(server.Check(), installer.Check(), watch.Check()) })
	return errors.Join(
		metrics.Registry.Register(cniFault("not_called", watch.Check)), metrics.Registry.Register(cniFault("not_chained", installer.Check)),
		mgr.Add(server), mgr.Add(watch), mgr.Add(keepChain(ctx, ctrl.Log, installer, home)),
	)
}

// addClear registers what keeps the plugin out of the chain, for an agent that follows one that had it there.
func addClear(mgr manager.Manager, o Options, ready *readiness, tell func(cniinstall.Event)) error {
	installer, err := o.Chain.Installer(ctrl.Log, tell)
	if err != nil {
		return fmt.Errorf("make CNI installer: %w", err)
	}
	ready.add("cni", func(context.Context) error { return installer.Left() })
	return errors.Join(metrics.Registry.Register(cniFault("leftover", installer.Left)), mgr.Add(manager.RunnableFunc(installer.Clear)))
}

// cniFault is a metric that is 1 while a check of the CNI chain fails.
func cniFault(fault string, check func() error) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: controllers.MetricPrefix + "cni_fault", Help: "1 while the node's CNI chain is not as the agent wants it.",
		ConstLabels: prometheus.Labels{"fault": fault},
	}, func() float64 { return map[bool]float64{true: 1}[check() != nil] })
}
