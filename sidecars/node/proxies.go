// Package node runs the proxies of one node: it joins their manager with the cluster, the container runtime and the pods' namespaces, and
// with the core of the agent.
//
//	proxies.go          what the core calls
//	shared.go           proxies that pods share
//	sharedsandboxes.go  the sandboxes of their pods
//	cluster.go          what pods have chosen
//	images.go           brings images to the node
//	ask.go              asks proxies inside of pods
//	secrets.go          Secrets, tokens
//	configmaps.go       ConfigMaps
//	profilestatuses.go  the elected agent's work
//	exec.go             commands in proxies
//	clean.go            what proxies have left
//	logs.go             their logs
//	proxymetrics.go     metrics
//	routes.go           where the rules of pods lead
//	reports.go          shows proxies in the cluster
//	tlsmode.go          the label by which peers send mTLS
//	proxycounts.go      follows ManagedProxies
//	profiles.go         profiles, compiled
package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/runtime/container"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/sidecars/rollout"
	"istio-pod-network-controller/sidecars/secretvolume"
)

// Config is what the proxies need of a node and its agent.
type Config struct {
	Node, AgentNamespace string
	// Pod is the agent's own pod; it may be "".
	Pod string
	// Runtime is a connection to a container runtime that serves CRI.
	Runtime    grpc.ClientConnInterface
	Namespaces kernel.Namespaces
	Pods       controllers.Reader
	// Event is called with what the owner of a pod has to know of its proxy.
	Event func(s podnet.Sandbox, reason, message string)
	// Root is the directory in memory for the pods' own proxies, SharedRoot that for proxies that pods share; without it there are none. Profiles is a
	// directory on disk.
	Root, SharedRoot, Profiles string
	// Secrets is the directory of the volumes of Secrets that proxies may be given. Tokens are made for TokenAudiences alone.
	Secrets        string
	TokenAudiences []string
}

// Proxies runs the proxies of a node's pods. It implements controllers.Proxies.
type Proxies struct {
	manager *sidecars.Manager
	// shared is nil if the agent runs no shared proxies.
	shared  sharedProxies
	cluster sidecarCluster
	reports *sidecarReports
	// statuses of profiles are written by the elected agent.
	statuses *profileStatuses
	// revisit has the core program a pod's rules anew.
	revisit func(podnet.Sandbox)
	// podGone is written to when a pod has gone: its profile may have before.
	podGone chan struct{}
}

// sharedProxies has the node's shared proxies serve pods. Each method returns at once.
type sharedProxies interface {
	// Follow has a profile's proxy serve a sandbox, and Keep is Follow without a new look at the pod.
	Follow(s podnet.Sandbox, profile string)
	Keep(s podnet.Sandbox, profile string)
	Follows(podUID string) bool
	Unfollow(podUID string)
	Notify(profile string)
	Serves(profile string, s podnet.Sandbox) (serves, known bool)
}

// Managed returns what the rules need to know of a pod's proxy, nil if it has none.
func (p *Proxies) Managed(ctx context.Context, s podnet.Sandbox, name string, pod *corev1.Pod, ns *corev1.Namespace) *intent.ManagedProxy {
	has, found, refusal, err := p.cluster.profileOf(ctx, s, name, pod, ns)
	switch {
	case err != nil:
		refusal = err.Error()
	case has == "":
		return nil
	}
	if refusal != "" {
		return &intent.ManagedProxy{Refused: refusal}
	}
	if to, known := p.cluster.routes.of(s); known && to.Profile == has && to.Proxy != nil && !found.shared() {
		out := *to.Proxy
		return &out
	}
	out := found.usable.ManagedProxy()
	out.Shared = found.shared()
	out.Later = p.cluster.isLater(s, found, pod)
	return &out
}

// Add adds the proxies to a manager. Metrics of proxies go to r.
func Add(mgr manager.Manager, r prometheus.Registerer, c Config) (*Proxies, error) {
	homes, err := home.NewHomes(c.Root)
	if err != nil {
		return nil, fmt.Errorf("--sidecar-root: %w", err)
	}
	profiles := newProfiles(mgr.GetCache(), c.Node)
	profiles.noShared = c.SharedRoot == ""
	runtime := container.New(c.Runtime, DefaultLogRoot)
	api, err := client.NewWithWatch(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("make client for watches: %w", err)
	}
	routes, err := newRoutes(filepath.Join(homes.Root, routesName))
	if err != nil {
		return nil, fmt.Errorf("--sidecar-root: notes of where pods' rules lead: %w", err)
	}
	out := &Proxies{
		podGone: make(chan struct{}, 1), cluster: sidecarCluster{c.Pods, profiles, routes},
		reports: newSidecarReports(mgr.GetClient(), c.Event, c.Node), statuses: &profileStatuses{cache: mgr.GetCache(), client: mgr.GetClient(), api: api},
	}
	volumes := secretvolume.Volumes{Root: c.Secrets}
	images := &sidecarImages{runtime: runtime, secrets: volumes, pause: pullPause}
	out.manager = sidecars.New(sidecars.Config{
		Runtime: runtime, Images: images, Prober: &sidecarProber{programs: runtime},
		Cluster: ownCluster{out.cluster}, ControlPlanes: out.cluster, Asker: asker{c.Namespaces, homes},
		Reporter: ownReporter{out.reports}, Routes: out, Homes: homes, Good: &rollout.Good{Dir: c.Profiles}, Rollout: &rollout.Queue{},
		Secrets: &sidecarSecrets{volumes: volumes, audiences: c.TokenAudiences, client: mgr.GetClient(), configMaps: &configMaps{api: api}},
	})
	profiles.good, out.reports.gone = out.manager.Good.Last, out.forgetRoutes
	metrics := newProxyMetrics(out.manager.Figures)
	out.manager.Started = metrics.observe
	if err := r.Register(metrics); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	images.done = func() { out.manager.Notify("") }
	if err := addShared(mgr, r, c, out, runtime); err != nil {
		return nil, err
	}
	elected, err := newElection(mgr, c.AgentNamespace, c.Pod, c.Node, out.statuses.work)
	if err != nil {
		return nil, err
	}
	prune := manager.RunnableFunc(func(ctx context.Context) error { routes.prune(ctx, runtime.Ready); return nil })
	deletions := manager.RunnableFunc(func(ctx context.Context) error { out.reports.deletions(api).follow(ctx); return nil })
	watch := ctrl.NewControllerManagedBy(mgr).Named("proxyprofiles").
		For(&v1alpha1.ProxyProfile{}, builder.WithPredicates(concernsNode(c.Node)))
	return out, errors.Join(
		watch.Complete(reconcile.Func(out.profileChanged)), mgr.Add(out.manager), mgr.Add(out.reports), mgr.Add(deletions), mgr.Add(prune), mgr.Add(manager.RunnableFunc(out.forgetGone)), mgr.Add(elected),
	)
}

// concernsNode passes changes of profiles, and of their statuses only what lets a node use a version: every agent receives each status.
func concernsNode(node string) predicate.Predicate {
	held := func(p *v1alpha1.ProxyProfile) bool { return rollout.Held(p, profile.HashOf(p.Spec), node) }
	return predicate.Or(predicate.GenerationChangedPredicate{}, predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.ProxyProfile)
		now, is := e.ObjectNew.(*v1alpha1.ProxyProfile)
		return ok && is && !equality.Semantic.DeepEqual(before.Status.Rollout, now.Status.Rollout) && held(before) != held(now)
	}})
}

// forgetGone forgets the profiles that were deleted while no agent ran, or while rules led to their proxies: now and then, and after a pod has gone.
func (p *Proxies) forgetGone(ctx context.Context) error {
	for {
		for _, name := range p.manager.Good.Profiles() {
			if err := p.forgetIfGone(ctx, name); err != nil && ctx.Err() == nil {
				ctrl.Log.Error(err, "profile not looked at that may be gone", "profile", name)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.podGone:
		case <-time.After(prunePause):
		}
	}
}

// forgetIfGone forgets a profile that is gone, and to whose proxies no rules lead: others run on.
func (p *Proxies) forgetIfGone(ctx context.Context, name string) error {
	err := p.cluster.profiles.cache.Get(ctx, types.NamespacedName{Name: name}, &v1alpha1.ProxyProfile{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	if p.cluster.routes.leadTo(name) {
		return nil
	}
	return p.manager.Good.Forget(name)
}

// profileChanged has the proxies of a profile looked at. It is also called for profiles that are gone.
func (p *Proxies) profileChanged(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	p.manager.Notify(r.Name)
	if p.shared != nil {
		p.shared.Notify(r.Name)
	}
	p.statuses.changed()
	return reconcile.Result{}, p.forgetIfGone(ctx, r.Name)
}

// Follow has the proxy of a sandbox looked after: by the manager of its mode, and by the other one until what it has done for the pod has
// ended.
func (p *Proxies) Follow(s podnet.Sandbox, by controllers.Hook, name string) {
	chosen, exists := p.cluster.profiles.remembered(name)
	shared := chosen.shared()
	keeps, why := p.cluster.routes.keeps(s, chosen)
	if has, known := p.cluster.routes.of(s); name != "" && !exists && known && has.Shared {
		keeps, why = has, fmt.Sprintf("there is no ProxyProfile %q: the pod keeps the proxy of %q", name, has.Profile)
	}
	if why != "" {
		name, shared = keeps.Profile, keeps.Shared
	}
	p.reports.choose(s.UID, choice{chosen: name != "", shared: shared, why: why})
	p.followShared(s, by, name, shared)
	switch {
	case (name == "" || shared) && !p.manager.Follows(s.UID):
	case by == controllers.Verify:
		p.manager.Keep(s)
	default:
		p.manager.Follow(s)
	}
}

func (p *Proxies) followShared(s podnet.Sandbox, by controllers.Hook, profile string, chosen bool) {
	switch {
	case p.shared == nil:
	case chosen && by == controllers.Verify:
		p.shared.Keep(s, profile)
	case chosen:
		p.shared.Follow(s, profile)
	case p.shared.Follows(s.UID):
		p.shared.Unfollow(s.UID)
	}
}

// Led notes to which proxy the rules of a sandbox lead now. A proxy to which they led before may let the pod go.
func (p *Proxies) Led(s podnet.Sandbox, to *intent.ManagedProxy) {
	now := routeTarget{}
	if to != nil {
		now = routeTarget{Profile: to.Profile, Proxy: to}
		if of, known := p.cluster.profiles.remembered(to.Profile); known && of.shared() {
			now.Shared, now.Proxy = true, nil
		}
	}
	before, changed, err := p.cluster.routes.applied(s, now)
	if err != nil {
		ctrl.Log.Error(err, "an agent that starts will not know where a pod's rules lead", "pod", s.Pod())
	}
	if !changed {
		return
	}
	if p.shared != nil && before.Shared {
		p.shared.Notify(before.Profile)
	}
	if p.manager.Follows(s.UID) {
		p.manager.Follow(s)
	}
}

// Lead has the rules of a sandbox lead to a proxy of the pod's own. It implements sidecars.Routes.
func (p *Proxies) Lead(s podnet.Sandbox, to intent.ManagedProxy, serves bool) (applied bool) {
	applied, changed, err := p.cluster.routes.change(s, to, serves)
	if err != nil {
		ctrl.Log.Error(err, "an agent that starts will not know where a pod's rules lead", "pod", s.Pod())
	}
	if changed && p.revisit != nil {
		p.revisit(s)
	}
	return applied
}

// Forget is for a pod that is gone. A shared proxy serves it until its sandbox has ended.
func (p *Proxies) Forget(podUID string) {
	p.manager.Unfollow(podUID)
	if p.shared != nil {
		p.shared.Unfollow(podUID)
	}
}

// forgetRoutes is for a pod that is gone. The proxy manager may be the first to know: the core forgets a pod whose sandbox the CNI chain deletes.
func (p *Proxies) forgetRoutes(podUID string) {
	p.cluster.routes.forget(podUID)
	select {
	case p.podGone <- struct{}{}:
	default: // it is looked at anyway
	}
}

// Ready reports whether the proxy of a sandbox is ready. known is false before it was asked.
func (p *Proxies) Ready(s podnet.Sandbox) (ready, known bool) {
	if to, told := p.cluster.routes.of(s); told && to.Shared && p.shared != nil {
		return p.shared.Serves(to.Profile, s)
	}
	return p.reports.Ready(s)
}

// Kinds are read before the first pod is worked on: a profile that is not known yet would be taken for none.
func Kinds() []client.Object { return []client.Object{&v1alpha1.ProxyProfile{}} }

// Join has the core redirect the pods' traffic to the proxies, and follow them.
func (p *Proxies) Join(programmer *controllers.Programmer) {
	programmer.Proxies = p
	p.reports.changed, p.revisit = programmer.Revisit, programmer.Revisit
}

// ContainerEnded has the proxy of a pod finish with its application. The runtime waits for the answer.
func (p *Proxies) ContainerEnded(ctx context.Context, s podnet.Sandbox, ended sidecar.Application) error {
	return p.manager.ContainerEnded(ctx, s, ended)
}
