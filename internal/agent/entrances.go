package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/runtime/cni"
	"istio-pod-network-controller/runtime/nri"
)

// entrance hands sandboxes that others tell of to the Programmer.
type entrance struct {
	by       controllers.Entrance
	door     *door
	failOpen bool
}

// Ensure programs a sandbox, or finds that it needs nothing. Its error refuses the pod.
func (e entrance) Ensure(ctx context.Context, s podnet.Sandbox) (asked bool, err error) {
	c, err := e.door.enter()
	if err != nil {
		return false, err
	}
	result, err := c.programmer.Ensure(ctx, e.by, s)
	return result != controllers.Skipped, err
}

// Forget drops a sandbox that is gone.
func (e entrance) Forget(sandboxID string) {
	if c, err := e.door.enter(); err == nil {
		c.programmer.Forget(sandboxID)
	}
}

// hostNetwork reports whether the API server has a pod on the host's network, where that is known.
func (e entrance) hostNetwork(ctx context.Context, s podnet.Sandbox) (hostNetwork, known bool) {
	c, err := e.door.enter()
	if err != nil {
		return false, false
	}
	pod, err := c.pods.Pod(ctx, s)
	if err != nil {
		return false, false
	}
	return pod.Spec.HostNetwork, true
}

// chain is the entrance by the CNI chain, whose runtimes do not always tell the pod's UID.
type chain struct{ entrance }

// Add programs a sandbox before its containers exist. A pod that the API server does not know is a static one, or is
// deleted already.
func (c chain) Add(ctx context.Context, s podnet.Sandbox) error {
	_, err := c.ensure(ctx, s)
	return err
}

// Check repairs what is missing, and says that it was.
func (c chain) Check(ctx context.Context, s podnet.Sandbox) error {
	result, err := c.ensure(ctx, s)
	if err == nil && result == controllers.Changed {
		err = errors.New("the sandbox's rules were not as its pod asks; they are now")
	}
	return err
}

// Del forgets a sandbox; its rules went with its namespace.
func (c chain) Del(_ context.Context, s podnet.Sandbox) error {
	c.Forget(s.ID)
	return nil
}

func (c chain) ensure(ctx context.Context, s podnet.Sandbox) (controllers.Result, error) {
	in, err := c.door.enter()
	if err != nil {
		return controllers.Failed, c.verdict(err)
	}
	if s.UID == "" {
		uid, err := in.pods.UID(ctx, s.Namespace, s.Name)
		if err != nil {
			return controllers.Failed, c.verdict(err)
		}
		s.UID = uid
	}
	result, err := in.programmer.Ensure(ctx, c.by, s)
	return result, c.verdict(err)
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

// runnable is a part of the agent that runs until its ctx ends.
type runnable func(context.Context) error

// entrances makes what tells the agent of sandboxes beside the API server. They need none to start.
func (a *agent) entrances() ([]runnable, error) {
	nri, errNRI := a.newNRI()
	cni, errCNI := a.newCNI()
	return append(nri, cni...), errors.Join(errNRI, errCNI)
}

func (a *agent) newNRI() ([]runnable, error) {
	if a.NRI.Mode == NRIOff {
		return nil, nil
	}
	e := entrance{by: controllers.NRI, door: a.door, failOpen: a.FailOpen}
	guard, err := netns.NewGuard()
	if err != nil {
		return nil, err
	}
	calls := nriCalls()
	n, err := nri.New(nri.Config{
		Socket: a.NRI.Socket, Name: a.NRI.Name, Index: a.NRI.Index, Handler: e, Required: a.NRI.Mode == NRIRequired, FailOpen: a.FailOpen,
		PassNamespaces: a.untouched(), IsHost: guard.IsHost, HostNetwork: e.hostNetwork,
		Observe: func(call string, outcome nri.Outcome, took time.Duration) {
			calls.WithLabelValues(call, string(outcome)).Observe(took.Seconds())
		},
	})
	if err != nil {
		return nil, err
	}
	a.nri = n
	a.ready.addNoted("nri", n.Check, func() string {
		if offered, _ := n.Offered(); !offered {
			return "not offered"
		}
		return ""
	})
	a.ready.addLive(n.Live)
	a.told = append(a.told, n.Connected)
	return []runnable{n.Start}, errors.Join(a.metrics.Register(calls), registerGauges(a.metrics, n))
}

// registerGauges tell whether the runtime has NRI, and uses it.
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

// nriCalls tell how long the runtime, which asks for one pod at a time, is held.
func nriCalls() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: controllers.MetricPrefix + "nri_call_duration_seconds", Help: "Time for which a call held the container runtime, by what it came to.",
		Buckets: prometheus.ExponentialBuckets(0.00001, 1.6, 25), // 10 µs to 0.8 s
	}, []string{"call", "result"})
}

func (a *agent) newCNI() ([]runnable, error) {
	if a.CNI == CNIOff {
		return nil, nil
	}
	server, err := cni.NewServer(cni.Config{
		Path: a.Chain.Plugin.Socket, Handler: chain{entrance{by: controllers.CNI, door: a.door, failOpen: a.FailOpen}},
		Ready: a.door.check, Log: slog.New(logr.ToSlogHandler(ctrl.Log)),
	})
	if err != nil {
		return nil, fmt.Errorf("make CNI socket: %w", err)
	}
	a.ready.add("cni", func(context.Context) error { return errors.Join(server.Check(), a.chained()) })
	return []runnable{server.Start}, nil
}

// chained says why the plugin is not in the chain.
func (a *agent) chained() error {
	if i := a.installed.Load(); i != nil {
		return i.Check()
	}
	return errors.New("the plugin is put into the chain once the API server is reached")
}

// addChain has the plugin kept in the node's chain. told ends when the process is told to end.
func (a *agent) addChain(told context.Context, mgr manager.Manager, programmer *controllers.Programmer) error {
	if a.CNI == CNIOff {
		return nil
	}
	c := a.Chain
	c.Plugin.ExcludeNamespaces = slices.Concat(c.Plugin.ExcludeNamespaces, a.untouched())
	installer, err := c.Installer(ctrl.Log, nodeEvents(mgr.GetEventRecorder(Name), a.NodeName))
	if err != nil {
		return fmt.Errorf("make CNI installer: %w", err)
	}
	home, err := newHome(mgr.GetConfig(), a.Intent.AgentNamespace, a.DaemonSet)
	if err != nil {
		return err
	}
	programmer.Told = append(programmer.Told, installer.Chained)
	a.installed.Store(installer)
	return mgr.Add(keepChain(told, ctrl.Log, installer, home))
}
