package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	goruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/internal/outage"
)

// cacheSyncTimeout is how long controllers wait for the API server's first list before the agent ends with an error. It is practically
// unlimited: an agent that ends can no longer answer the runtime.
const cacheSyncTimeout = 30 * 24 * time.Hour

// newManager makes the manager. ended is closed on SIGTERM.
func newManager(config *rest.Config, o Options, contact *outage.Contact, ended <-chan struct{}) (manager.Manager, error) {
	scheme := goruntime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), authenticationv1.AddToScheme(scheme), addProxyKinds(scheme)); err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Cache: o.cache(contact),
		Controller: controllerOptions(),
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

func (o Options) cache(contact *outage.Contact) cache.Options {
	out := controllers.CacheOptions(o.NodeName, o.Sidecars, contact)
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

// reachAPI makes the manager, which needs the API server, and tries again until that succeeds or ctx ends.
func reachAPI(ctx context.Context, config *rest.Config, o Options, contact *outage.Contact) (manager.Manager, error) {
	for failures := 1; ; failures++ {
		mgr, err := tryNewManager(ctx, config, o, contact)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		contact.Note(ctx, "start", err)
		if err == nil {
			return mgr, nil
		}
		if !jitter.Wait(ctx, jitter.Bound(failures)) {
			return nil, ctx.Err()
		}
	}
}

// tryNewManager calls newManager, which takes no ctx, and returns early if ctx ends.
func tryNewManager(ctx context.Context, config *rest.Config, o Options, contact *outage.Contact) (mgr manager.Manager, err error) {
	done := make(chan struct{})
	var made manager.Manager
	var errMade error
	go func() {
		defer close(done)
		made, errMade = newManager(config, o, contact, ctx.Done())
	}()
	select {
	case <-done:
		return made, errMade
	case <-ctx.Done():
		return nil, ctx.Err()
	}
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
