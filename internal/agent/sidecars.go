package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/secretvolume"
	"istio-pod-network-controller/runtime/container"
	"istio-pod-network-controller/runtime/cri"
	"istio-pod-network-controller/sidecars"
)

// proxies joins the sidecar manager with the rest of the agent. It is nil without --sidecars.
type proxies struct {
	manager  *sidecars.Manager
	profiles *profiles
	reports  *sidecarReports
	sums     *sidecarSums
}

// profiles are the SidecarProfiles of the cluster, compiled.
type profiles struct {
	cache client.Reader
	mu    sync.Mutex
	known map[string]profile
}

// profile is a compiled SidecarProfile, or why it cannot be used.
type profile struct {
	uid        types.UID
	generation int64
	usable     *sidecars.Profile
	err        error
}

func newProfiles(cache client.Reader) *profiles {
	return &profiles{cache: cache, known: map[string]profile{}}
}

// get returns a profile, and why it cannot be used, if so. err is for what may work later.
func (p *profiles) get(ctx context.Context, name string) (found profile, refusal string, err error) {
	var object v1alpha1.SidecarProfile
	err = p.cache.Get(ctx, types.NamespacedName{Name: name}, &object)
	switch {
	case apierrors.IsNotFound(err):
		return profile{}, fmt.Sprintf("there is no SidecarProfile %q: create it, or choose another one", name), nil
	case err != nil:
		return profile{}, "", fmt.Errorf("read SidecarProfile %q: %w", name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known[name]
	if known.uid != object.UID || known.generation != object.Generation {
		known.uid, known.generation = object.UID, object.Generation
		known.usable, known.err = sidecars.Compile(&object)
		p.known[name] = known
	}
	if known.err != nil {
		refusal = fmt.Sprintf("the SidecarProfile %q cannot be used: %v", name, known.err)
	}
	return known, refusal, nil
}

// forPod is get, and refusal says as well why the pod in its namespace cannot have a proxy of the profile.
func (p *profiles) forPod(ctx context.Context, name string, pod *corev1.Pod, ns *corev1.Namespace) (found profile, refusal string, err error) {
	found, refusal, err = p.get(ctx, name)
	if err == nil && refusal == "" {
		refusal = found.usable.Refusal(pod, labelsOf(ns))
	}
	return found, refusal, err
}

// Managed returns what the rules need to know of a pod's proxy.
func (p *proxies) Managed(ctx context.Context, name string, pod *corev1.Pod, ns *corev1.Namespace) *intent.ManagedProxy {
	found, refusal, err := p.profiles.forPod(ctx, name, pod, ns)
	if err != nil {
		refusal = err.Error()
	}
	if refusal != "" {
		return &intent.ManagedProxy{Refused: refusal}
	}
	return managedProxy(found.usable.Spec)
}

func labelsOf(ns *corev1.Namespace) map[string]string {
	if ns == nil {
		return nil
	}
	return ns.Labels
}

// managedProxy converts what the schema has checked.
func managedProxy(spec v1alpha1.SidecarProfileSpec) *intent.ManagedProxy {
	out := &intent.ManagedProxy{
		UID: uint32(spec.RunAsUser), OutboundPort: uint16(spec.Network.OutboundPort), InboundPort: uint16(spec.Network.InboundPort), //nolint:gosec // see above
		Transparent: spec.Network.Transparent, InboundPorts: spec.Network.InboundPorts,
	}
	if spec.Network.Transparent || spec.Mode == v1alpha1.ModeShared { // it runs as root, and so may the application
		out.UID, out.GID = 0, uint32(spec.RunAsGroup) //nolint:gosec // see above
	}
	for _, port := range spec.Network.ExcludeInboundPorts {
		out.ExcludeInboundPorts = append(out.ExcludeInboundPorts, uint16(port)) //nolint:gosec // see above
	}
	return out
}

// sidecarCluster is what the sidecar manager reads of the cluster.
type sidecarCluster struct {
	pods     controllers.Reader
	profiles *profiles
}

// Pod returns a pod as the API server has it: the cache leaves out most labels and annotations.
func (c sidecarCluster) Pod(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	return c.pods.Current(ctx, s)
}

// Choice returns what a pod has chosen.
func (c sidecarCluster) Choice(ctx context.Context, s podnet.Sandbox) (sidecars.Choice, error) {
	pod, err := c.pods.Pod(ctx, s)
	if err != nil {
		return sidecars.Choice{}, err
	}
	ns, err := c.pods.Namespace(ctx, s.Namespace)
	if err != nil {
		return sidecars.Choice{}, err
	}
	finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	out := sidecars.Choice{
		Ending: finished || pod.DeletionTimestamp != nil, Finished: finished,
		OptedOut: pod.Annotations[intent.KeySidecar] == intent.SidecarNone || pod.Annotations[intent.KeyInitialize] == "false",
	}
	name, err := intent.SidecarProfile(pod, ns)
	if err != nil || name == "" || out.OptedOut {
		return out, nil //nolint:nilerr // the pod's report says what is wrong with its annotation; its proxy stays
	}
	out.Name = name
	found, refusal, err := c.profiles.forPod(ctx, name, pod, ns)
	if err != nil {
		return out, err
	}
	out.Generation, out.Refusal = found.generation, refusal
	if refusal == "" {
		out.Profile = found.usable
	}
	return out, nil
}

// addProxies adds the sidecar manager if it is switched on.
func (a *agent) addProxies(mgr manager.Manager, pods controllers.Reader, event func(s podnet.Sandbox, reason, message string)) (*proxies, error) {
	if !a.Sidecars {
		return nil, nil //nolint:nilnil // it is off
	}
	finder, ok := a.finder.(*cri.Finder)
	if !ok {
		return nil, errors.New("--sidecars needs a container runtime that serves CRI: containerd or CRI-O")
	}
	homes, err := sidecars.NewHomes(a.SidecarRoot)
	if err != nil {
		return nil, fmt.Errorf("--sidecar-root: %w", err)
	}
	profiles := newProfiles(mgr.GetCache())
	runtime := container.New(finder.Connection(), DefaultLogRoot)
	out := &proxies{
		profiles: profiles, reports: newSidecarReports(mgr.GetClient(), event, a.NodeName), sums: newSidecarSums(mgr.GetClient(), a.NodeName),
	}
	volumes := secretvolume.Volumes{Root: a.SidecarSecrets}
	images := &sidecarImages{runtime: runtime, secrets: volumes, pause: pullPause}
	out.manager = &sidecars.Manager{
		Runtime: runtime, Logs: runtime, Images: images, Prober: &sidecarProber{programs: runtime}, Applications: runtime,
		Cluster: sidecarCluster{pods, profiles}, Asker: sidecarAsker{a.backends, homes},
		Reporter: out.reports, Homes: homes, Rollout: &sidecars.Rollouts{}, Summaries: out.sums,
		Secrets: &sidecarSecrets{volumes: volumes, audiences: a.SidecarTokenAudiences, client: mgr.GetClient()},
	}
	images.done = func() { out.manager.Notify("") }
	watch := ctrl.NewControllerManagedBy(mgr).Named("sidecarprofiles").
		For(&v1alpha1.SidecarProfile{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})) // not of each node's status
	conditions := ctrl.NewControllerManagedBy(mgr).Named("sidecarprofileconditions").For(&v1alpha1.SidecarProfile{})
	return out, errors.Join(
		conditions.Complete(newSidecarConditions(mgr.GetCache(), mgr.GetAPIReader(), mgr.GetClient(), a.NodeName)),
		watch.Complete(reconcile.Func(out.profileChanged)), mgr.Add(out.manager), mgr.Add(out.reports), mgr.Add(out.sums),
	)
}

// profileChanged has the proxies of a profile looked at.
func (p *proxies) profileChanged(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	p.manager.Notify(r.Name)
	var object v1alpha1.SidecarProfile
	err := p.profiles.cache.Get(ctx, r.NamespacedName, &object)
	if err == nil {
		p.sums.Seen(&object)
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}

// Follow has the proxy of a sandbox looked after.
func (p *proxies) Follow(s podnet.Sandbox, by controllers.Entrance, chosen bool) {
	switch {
	case !chosen && !p.manager.Follows(s.UID):
	case by == controllers.Verify:
		p.manager.Keep(s)
	default:
		p.manager.Follow(s)
	}
}

// Forget is for a pod that is gone.
func (p *proxies) Forget(podUID string) { p.manager.Unfollow(podUID) }

// Ready reports whether a sandbox's proxy is ready; known is false before it was asked.
func (p *proxies) Ready(s podnet.Sandbox) (ready, known bool) { return p.reports.Ready(s) }

// moreKinds are the kinds that are read before the first pod is worked on: a profile that is not known yet would be taken for none.
func (a *agent) moreKinds() []client.Object {
	if !a.Sidecars {
		return nil
	}
	return []client.Object{&v1alpha1.SidecarProfile{}}
}

// join has the core redirect the pods' traffic to the proxies, and follow them.
func (p *proxies) join(programmer *controllers.Programmer) {
	if p == nil {
		return
	}
	programmer.Proxies = p
	p.reports.changed = func(ctx context.Context, s podnet.Sandbox) {
		_, _ = programmer.Ensure(ctx, controllers.Watch, s) // a failure is reported on the pod, and tried again by the verifier
	}
}
