package agent

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/runtime/cni"
	"istio-pod-network-controller/runtime/cni/install"
)

// cniHook is the hook of the CNI chain. Not every runtime passes the pod's UID.
type cniHook struct {
	ensurer
	calls      *install.Calls
	letThrough prometheus.Counter // counts the pods that failOpen lets through
	requests   *prometheus.HistogramVec
}

// measure observes a request that began then and ends now.
func (c cniHook) measure(command string, began time.Time, err *error) {
	result := map[bool]string{true: cniPassed, false: cniRefused}[*err == nil]
	c.requests.WithLabelValues(command, result).Observe(time.Since(began).Seconds())
}

// Add programs a sandbox before its containers exist. While the agent has not read its pods, it waits for most of the time that ctx allows, unless
// the pod may start without rules. A pod that the API server does not know passes: it is a static pod, or was deleted already.
func (c cniHook) Add(ctx context.Context, s podnet.Sandbox) (err error) {
	defer c.measure(cniAdd, time.Now(), &err)
	c.calls.Called(s.Pod(), time.Now())
	if !c.failOpen {
		c.core.await(ctx)
	}
	_, err = c.ensure(ctx, s)
	return err
}

// Check repairs missing rules. It fails only if the pod asks for rules, is known to have none, and they could not be applied: CRI-O
// drops the address of a sandbox whose CHECK fails, and the kubelet then kills the pod.
func (c cniHook) Check(ctx context.Context, s podnet.Sandbox) (err error) {
	defer c.measure(cniCheck, time.Now(), &err)
	known, err := c.ensure(ctx, s)
	if err == nil || !controllers.RulesKept(err) && c.rulesMissing(ctx, known) {
		return err
	}
	ctrl.Log.Info("CHECK passed without a repair", "hook", c.by, "pod", s.Pod(), "sandbox", s.ID, "reason", err.Error())
	return nil
}

// rulesMissing reports whether the pod is known to have no rules although it asks for some, or has annotations that are wrong.
func (c cniHook) rulesMissing(ctx context.Context, s podnet.Sandbox) bool {
	core, err := c.core.get()
	if err != nil {
		return false
	}
	pod, errPod := core.programmer.Pods.Pod(ctx, s)
	ns, errNamespace := core.programmer.Pods.Namespace(ctx, s.Namespace)
	if errPod != nil || errNamespace != nil {
		return false // unknown; most pods ask for no rules
	}
	if asked, err := core.programmer.Intent(ctx, s, pod, ns); err == nil && !asked.Redirect {
		return false
	}
	present, err := core.programmer.Backend.Present(ctx, s.Place())
	return err == nil && !present
}

// Del forgets a sandbox; its rules went with its namespace.
func (c cniHook) Del(_ context.Context, s podnet.Sandbox) (err error) {
	defer c.measure(cniDel, time.Now(), &err)
	if core, err := c.core.get(); err == nil {
		core.programmer.Forget(s.ID)
	}
	return nil
}

// ensure looks up the pod's UID if it is missing, and programs the sandbox. It returns the sandbox with its UID. cri-dockerd names the namespace by a
// process, which the agent need not see: the Docker Engine, where the sandbox runs already, has another path
// (https://github.com/Mirantis/cri-dockerd/blob/master/core/helpers_linux.go, getNetworkNamespace).
func (c cniHook) ensure(ctx context.Context, s podnet.Sandbox) (podnet.Sandbox, error) {
	core, err := c.core.get()
	if err != nil {
		return s, c.refusal(err)
	}
	if s.UID == "" {
		uid, err := core.pods.UID(ctx, s.Namespace, s.Name)
		if err != nil {
			return s, c.refusal(err)
		}
		s.UID = uid
	}
	if s.OfProcess() {
		s.NetNS = ""
	}
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithValues("hook", c.by, "pod", s.Pod(), "podUID", s.UID))
	_, err = core.programmer.Ensure(ctx, c.by, s)
	return s, c.refusal(err)
}

func (c cniHook) refusal(err error) error {
	if errors.Is(err, podnet.ErrNoPod) {
		return nil
	}
	if err != nil && c.failOpen {
		ctrl.Log.Error(err, "pod let through without its rules", "hook", c.by)
		c.letThrough.Inc()
		return nil
	}
	return err
}

// cniState is shared by the socket, which may be served before the API server was reached, and by the code that keeps the chain.
type cniState struct {
	server *cni.Server
	served func(context.Context) error // why the plugin's requests cannot reach this agent; set with server
	calls  install.Calls
	// checkChain returns what is wrong with the chain. It is nil until the API server was reached.
	checkChain atomic.Pointer[func() error]
}

// Check returns why the plugin's requests do not reach this agent.
func (p *cniState) Check(ctx context.Context) error {
	var errs []error
	if p.server != nil {
		errs = append(errs, p.served(ctx))
	}
	if check := p.checkChain.Load(); check != nil {
		return errors.Join(append(errs, (*check)())...)
	}
	return errors.Join(append(errs, errors.New("the chain is not checked until the API server is reached"))...)
}

// add registers the code that keeps the chain. processCtx ends on SIGTERM.
func (p *cniState) add(processCtx context.Context, o Options, r prometheus.Registerer, mgr manager.Manager, programmer *controllers.Programmer) error {
	if o.CNI == CNIOff {
		return nil
	}
	notify := nodeEvents(mgr.GetEventRecorder(Name), o.NodeName)
	installer, err := o.Chain.Installer(ctrl.Log, notify)
	if err != nil {
		return fmt.Errorf("make CNI installer: %w", err)
	}
	if o.CNI == CNIUninstall {
		check := installer.CheckRemoved
		p.checkChain.Store(&check)
		// Clear removes the plugin that an earlier agent has chained, and keeps it out.
		return errors.Join(r.Register(cniFault("leftover", installer.CheckRemoved)), mgr.Add(manager.RunnableFunc(installer.Clear)))
	}
	return p.addChain(processCtx, o, r, mgr, programmer, installer, notify)
}

// addChain registers the code that keeps the plugin in the chain, and the code that notices that it is not called.
func (p *cniState) addChain(
	processCtx context.Context, o Options, r prometheus.Registerer, mgr manager.Manager, programmer *controllers.Programmer, installer *install.Installer, notify func(install.Event),
) error {
	daemonSet, err := newOwnDaemonSet(mgr.GetConfig(), o.Intent.AgentNamespace, o.DaemonSet)
	if err != nil {
		return err
	}
	watch := &callWatch{
		pods: mgr.GetCache(), calls: &p.calls, excluded: o.Chain.Plugin.Excludes,
		serving: func() bool { return installer.Chained() && p.server.Served() },
		notify: func(err error) {
			e := install.Event{Kind: install.NotCalled, Path: o.Chain.ConfDir, Err: err}
			logCNI(ctrl.Log, e)
			notify(e)
		},
	}
	check := func() error { return errors.Join(installer.Check(), watch.Check()) }
	p.checkChain.Store(&check)
	programmer.Announcers = append(programmer.Announcers, func() bool { return installer.Chained() && watch.Check() == nil })
	return errors.Join(
		r.Register(cniFault("not_called", watch.Check)), r.Register(cniFault("not_chained", installer.Check)),
		mgr.Add(watch), mgr.Add(keepChain(processCtx, ctrl.Log, installer, daemonSet)),
	)
}

// cniFault returns a metric that is 1 while a check of the CNI chain fails.
func cniFault(fault string, check func() error) prometheus.Collector {
	return gaugeOf(controllers.MetricPrefix+"cni_fault", "1 while the node's CNI chain is not as the agent wants it.", prometheus.Labels{"fault": fault}, func() bool { return check() != nil })
}
