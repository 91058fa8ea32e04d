package scale

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/outage"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/selfreport"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/runtime/kubelet"
	"istio-pod-network-controller/test/standins/runtimestandin"
)

// hollowAgent is the agent of one node without its kernel and its container runtime: the agent's own caches, watch, core and writer, and
// its report about itself.
type hollowAgent struct {
	manager manager.Manager
	report  selfreport.Report
	synced  atomic.Bool // the caches are filled, which is when an agent is ready
	seen    *fleet
	stop    context.CancelFunc
	ended   chan error
}

// fleet counts what all hollow agents do.
type fleet struct {
	applied  atomic.Int64 // looks at sandboxes
	requests atomic.Int64
	pods     atomic.Int64 // requests that changed something of a pod
	own      atomic.Int64 // of the agent's own pod

	mu       sync.Mutex
	attempts []time.Time // when each request began, also of one that failed
}

// attempt counts a request that begins.
func (f *fleet) attempt() {
	f.requests.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attempts = append(f.attempts, time.Now())
}

// perSecond returns how many requests began in each second from a time on, until another.
func (f *fleet) perSecond(from, to time.Time) []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := make([]int, int(to.Sub(from)/time.Second)+1)
	for _, at := range f.attempts {
		if !at.Before(from) && at.Before(to) {
			counts[int(at.Sub(from)/time.Second)]++
		}
	}
	return counts
}

// newHollowAgent makes the agent of a node. Each has connections of its own, as agents on nodes have.
func newHollowAgent(s *server, node string, k *kubelets, seen *fleet) (*hollowAgent, error) {
	c := rest.CopyConfig(s.agents.Config())
	c.QPS, c.Burst = 50, 200             // the agent's own
	c.Dial = (&net.Dialer{}).DialContext // a connection is shared by configurations that are equal
	c.Wrap(seen.count)
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	newInformer, err := k.informer(node)
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(c, ctrl.Options{
		Scheme: scheme, MapperProvider: knownKinds, Cache: controllers.CacheOptions(node, false, newInformer), Controller: config.Controller{SkipNameValidation: new(true), CacheSyncTimeout: fleetLimit},
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
	})
	if err != nil {
		return nil, err
	}
	write, err := selfreport.NewWrite(mgr, types.NamespacedName{Namespace: agentNamespace, Name: agentPod(node)})
	if err != nil {
		return nil, err
	}
	a := &hollowAgent{manager: mgr, seen: seen, ended: make(chan error, 1)}
	a.report = selfreport.Report{Look: a.status, Write: write, Log: logr.Discard()}
	return a, a.add(k != nil)
}

// knownKinds maps the kinds that agents read, without a question to the API server.
func knownKinds(*rest.Config, *http.Client) (meta.RESTMapper, error) {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	for _, kind := range []string{"Namespace", "Node"} {
		m.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	return m, nil
}

// count counts the requests of agents.
func (f *fleet) count(next http.RoundTripper) http.RoundTripper { return counted{next, f} }

type counted struct {
	http.RoundTripper
	fleet *fleet
}

// RoundTrip counts and sends a request.
func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.fleet.attempt()
	resp, err := c.RoundTripper.RoundTrip(r)
	if err == nil && r.Method != http.MethodGet && resp.StatusCode < http.StatusMultipleChoices {
		if strings.Contains(r.URL.Path, "/namespaces/"+agentNamespace+"/") {
			c.fleet.own.Add(1)
		} else {
			c.fleet.pods.Add(1)
		}
	}
	return resp, err
}

// informer makes informers as the agent's, whose pods come from the kubelet of a node.
func (k *kubelets) informer(node string) (controllers.NewInformer, error) {
	fromAPI := new(outage.Contact).Informer
	if k == nil {
		return fromAPI, nil
	}
	c, err := kubelet.NewClient(k.of[node].Socket)
	return func(lw toolscache.ListerWatcher, kind runtime.Object, resync time.Duration, by toolscache.Indexers) toolscache.SharedIndexInformer {
		if _, isPod := kind.(*corev1.Pod); !isPod {
			return fromAPI(lw, kind, resync, by)
		}
		s := kubelet.NewSource(c, kubelet.Kubelet, toolscache.ToListerWatcherWithContext(lw), controllers.StripPod)
		return toolscache.NewSharedIndexInformer(&toolscache.ListWatch{ListWithContextFunc: s.ListWithContext, WatchFuncWithContext: s.WatchWithContext}, kind, resync, by)
	}, err
}

// status is what the agent writes about itself.
func (a *hollowAgent) status(context.Context) agentstatus.Status {
	ready := a.synced.Load()
	return agentstatus.Status{Version: "scale", Ready: ready, Hook: []agentstatus.Hook{{Name: "watch", Up: ready}}, Time: time.Now().Round(time.Second)}
}

// add adds to the manager what the agent adds to it.
func (a *hollowAgent) add(fromKubelet bool) error {
	ledger := controllers.NewLedger()
	counters, err := controllers.NewMetrics(prometheus.NewRegistry(), ledger)
	if err != nil {
		return err
	}
	pods := controllers.Reader{Cache: a.manager.GetCache(), Live: a.manager.GetAPIReader()}
	writer := controllers.NewWriter(a.manager.GetClient(), pods, a.manager.GetEventRecorder("scale"))
	writer.Lags = func() bool { return fromKubelet }
	kernel := noKernel{a.seen}
	programmer := &controllers.Programmer{
		Config:  intent.Config{Select: intent.SelectAnnotation, AgentNamespace: agentNamespace, Defaults: intent.StandardDefaults()},
		Backend: kernel, BackendName: "none", Namespaces: kernel, Finder: kernel, Pods: pods, Reporter: writer, Ledger: ledger, Metrics: counters,
	}
	watch := controllers.NewPodWatch(a.manager.GetCache(), programmer)
	synced := manager.RunnableFunc(func(ctx context.Context) error {
		a.synced.Store(a.manager.GetCache().WaitForCacheSync(ctx))
		return nil
	})
	return errors.Join(watch.SetupWithManager(a.manager), a.manager.Add(writer), a.manager.Add(synced))
}

func (a *hollowAgent) start(ctx context.Context) {
	ctx, a.stop = context.WithCancel(ctx)
	reported := make(chan struct{})
	go func() { defer close(reported); a.report.Start(ctx) }()
	go func() {
		err := a.manager.Start(ctx)
		<-reported
		a.ended <- err
	}()
}

// end ends the agent, and its connections.
func (a *hollowAgent) end() error {
	a.stop()
	err := <-a.ended
	if t, ok := a.manager.GetHTTPClient().Transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
	return err
}

// value returns what the agent knows of a namespace's annotation.
func (a *hollowAgent) value(ctx context.Context, namespace, key string) (string, error) {
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	err := a.manager.GetCache().Get(ctx, client.ObjectKey{Name: namespace}, ns)
	return ns.Annotations[key], err
}

// noKernel stands in for the kernel and the container runtime: each pod has a sandbox, and each sandbox its rules.
type noKernel struct{ seen *fleet }

// Apply finds what it wants.
func (k noKernel) Apply(context.Context, podnet.Place, iptables.Ruleset) (iptables.Outcome, error) {
	k.seen.applied.Add(1)
	return iptables.Outcome{}, nil
}

// Present finds rules.
func (noKernel) Present(context.Context, podnet.Place) (bool, error) { return true, nil }

// Remove finds none.
func (noKernel) Remove(context.Context, podnet.Place) (bool, error) { return false, nil }

// Identify gives every path the same identity.
func (noKernel) Identify(string) (podnet.Identity, error) {
	return podnet.Identity{Dev: 1, Ino: 2, Cookie: 3}, nil
}

// Find finds a sandbox for every pod.
func (noKernel) Find(_ context.Context, pod podnet.Sandbox) (podnet.Sandbox, error) {
	pod.ID, pod.NetNS = runtimestandin.HexID(pod.UID), "/run/netns/"+pod.UID
	return pod, nil
}
