package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	goruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"istio-pod-network-controller/controllers"
)

// cacheSyncTimeout is how long controllers wait for the API server's first list before the agent ends with an error. It is practically
// unlimited: an agent that ends can no longer answer the runtime.
const cacheSyncTimeout = 30 * 24 * time.Hour

// newManager makes the manager. ended is closed on SIGTERM.
func newManager(config *rest.Config, o Options, holder *coreHolder, ended <-chan struct{}) (manager.Manager, error) {
	scheme := goruntime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), authenticationv1.AddToScheme(scheme), addProxyKinds(scheme)); err != nil {
		return nil, err
	}
	if o.ReadAsNode {
		config = rest.CopyConfig(config)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return controllers.AsNode(o.NodeName, next) })
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Cache: o.cache(holder.newInformer),
		Controller:     controllerOptions(),
		MapperProvider: knownKinds,
		NewCache: func(config *rest.Config, options cache.Options) (cache.Cache, error) {
			c, err := cache.New(config, options)
			return endingCache{c, ended}, err
		},
		Metrics:                 metricsserver.Options{BindAddress: "0"}, // see serveMetrics
		HealthProbeBindAddress:  "0",                                     // agent serves health itself
		GracefulShutdownTimeout: new(stopTimeout),
	})
	if err != nil {
		return nil, fmt.Errorf("make manager: %w", err)
	}
	return mgr, nil
}

func (o Options) cache(newInformer controllers.NewInformer) cache.Options {
	out := controllers.CacheOptions(o.NodeName, o.Sidecars, newInformer)
	if o.Sidecars {
		for _, kind := range proxyKinds(o) {
			out.ByObject[kind] = cache.ByObject{Transform: cache.TransformStripManagedFields()}
		}
	}
	return out
}

func controllerOptions() config.Controller {
	return config.Controller{CacheSyncTimeout: cacheSyncTimeout, SkipNameValidation: new(true)} // names are unique in one manager; tests have several managers
}

// endingCache is a cache whose WaitForCacheSync returns on SIGTERM. Otherwise the manager's Start would not return
// while a cache is not filled.
type endingCache struct {
	cache.Cache
	ended <-chan struct{}
}

// WaitForCacheSync reports whether the caches are filled, or the agent is told to end.
func (c endingCache) WaitForCacheSync(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-c.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	return c.Cache.WaitForCacheSync(ctx) || ctx.Err() != nil
}

// knownKinds maps the kinds of objects that the agent asks for, without a question to the API server, which may be away. It is asked about others.
func knownKinds(config *rest.Config, h *http.Client) (meta.RESTMapper, error) {
	known := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Pod", "ConfigMap", "ServiceAccount"} {
		known.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	for _, kind := range []string{"Namespace", "Node"} {
		known.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	mapProxyKinds(known)
	others, err := apiutil.NewDynamicRESTMapper(config, h)
	if err != nil {
		return nil, err
	}
	return meta.FirstHitRESTMapper{MultiRESTMapper: meta.MultiRESTMapper{known, others}}, nil
}

// setCoreOnceSynced waits until the caches hold the node's pods and the namespaces, and then stores the core.
func setCoreOnceSynced(ctx context.Context, from cache.Cache, holder *coreHolder, c core, kinds ...client.Object) error {
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"})
	for _, kind := range append([]client.Object{&corev1.Pod{}, ns}, kinds...) {
		if _, err := from.GetInformer(ctx, kind, cache.BlockUntilSynced(false)); err != nil {
			return err
		}
	}
	if from.WaitForCacheSync(ctx) && ctx.Err() == nil {
		holder.set(c)
	}
	return nil
}
