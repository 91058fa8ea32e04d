package node

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	retrywatch "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/sidecars/home"
)

const (
	// readTimeout bounds the first read of a ConfigMap: a worker that restarts proxies waits for it.
	readTimeout = 5 * time.Second
	// followFor is how long a ConfigMap is followed without a read. Those of proxies that run are read at least every minute.
	followFor = 5 * time.Minute
	// readPause is how long an object that could not be read is not asked for again, whatever the number of proxies that want it.
	readPause = 2 * time.Second
)

// configMaps has the ConfigMaps that proxies of the node are given:
//
//   - The first read lists the object alone, which the agent's rights name, and begins to watch it.
//   - Later reads make no request. A change is there as soon as the API server tells it.
//   - An object that is not there is watched, too.
//   - An object that could not be read is not asked for again for readPause.
//   - Without a read for followFor the watch ends. So it does if the API server has forgotten where it was: the next read is a first one again.
type configMaps struct {
	api client.WithWatch

	mu     sync.Mutex
	known  map[types.NamespacedName]followedMap
	failed map[types.NamespacedName]failedRead
}

// failedRead is why a ConfigMap could not be read, and until when it is not asked for again.
type failedRead struct {
	err   error
	until time.Time
}

// followedMap is a ConfigMap that is watched until idle fires.
type followedMap struct {
	values map[string][]byte // nil: it is not there
	idle   *time.Timer
}

// ConfigMap returns the values of a ConfigMap's keys. Without keys it returns all.
func (c *configMaps) ConfigMap(ctx context.Context, namespace string, want v1alpha1.ConfigMapKeys) (map[string][]byte, error) {
	all, err := c.read(ctx, types.NamespacedName{Namespace: namespace, Name: want.Name})
	if err != nil || len(want.Keys) == 0 {
		return all, err
	}
	out := map[string][]byte{}
	for _, key := range want.Keys {
		value, has := all[key]
		if !has {
			return nil, fmt.Errorf("it has no key %q", key)
		}
		out[key] = value
	}
	return out, nil
}

func (c *configMaps) read(ctx context.Context, key types.NamespacedName) (map[string][]byte, error) {
	c.mu.Lock()
	known, follows := c.known[key]
	if follows {
		known.idle.Reset(followFor)
	}
	failed := c.failed[key]
	c.mu.Unlock()
	switch {
	case follows:
		return known.read()
	case time.Now().Before(failed.until):
		return nil, failed.err
	}
	found, err := c.first(ctx, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		maps.DeleteFunc(c.failed, func(_ types.NamespacedName, f failedRead) bool { return time.Now().After(f.until) })
		if c.failed == nil {
			c.failed = map[types.NamespacedName]failedRead{}
		}
		c.failed[key] = failedRead{err, time.Now().Add(readPause)}
		return nil, err
	}
	now := followedMap{}
	if len(found.Items) > 0 {
		now.values = contentOf(&found.Items[0])
	}
	if _, follows := c.known[key]; !follows { // another worker may have been faster
		whole, stop := context.WithCancel(context.WithoutCancel(ctx))
		if c.known == nil {
			c.known = map[types.NamespacedName]followedMap{}
		}
		now.idle = time.AfterFunc(followFor, stop)
		c.known[key] = now
		go c.follow(whole, stop, key, found.ResourceVersion)
	}
	return now.read()
}

func (m followedMap) read() (map[string][]byte, error) {
	if m.values == nil {
		return nil, home.ErrNoConfigMap
	}
	return m.values, nil
}

func (c *configMaps) first(ctx context.Context, key types.NamespacedName) (found corev1.ConfigMapList, err error) {
	asked, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err = c.api.List(asked, &found, client.InNamespace(key.Namespace), client.MatchingFieldsSelector{Selector: nameOnly(key)})
	if apierrors.IsForbidden(err) {
		err = fmt.Errorf("%w: name it in the chart's value proxies.configMaps", err)
	}
	return found, err
}

func nameOnly(key types.NamespacedName) fields.Selector {
	return fields.OneTermEqualSelector(metav1.ObjectNameField, key.Name)
}

func contentOf(object *corev1.ConfigMap) map[string][]byte {
	out := map[string][]byte{}
	for key, text := range object.Data {
		out[key] = []byte(text)
	}
	maps.Copy(out, object.BinaryData)
	return out
}

// follow keeps what is known of a ConfigMap up to date until its watch ends.
func (c *configMaps) follow(ctx context.Context, stop context.CancelFunc, key types.NamespacedName, version string) {
	defer stop()
	err := c.watch(ctx, stop, key, version)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[key].idle.Stop()
	delete(c.known, key)
	log.FromContext(ctx).V(1).Info("ConfigMap of proxies no longer watched", "configMap", key, "reason", fmt.Sprint(err))
}

// watch returns when stop was called, or the API server says that nothing more can be learned of the object. A RetryWatcher asks once a second, and
// also for a version that is no longer there.
func (c *configMaps) watch(ctx context.Context, stop context.CancelFunc, key types.NamespacedName, version string) error {
	failures := 0
	watcher, err := retrywatch.NewRetryWatcherWithContext(ctx, version, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := c.api.Watch(ctx, &corev1.ConfigMapList{}, &client.ListOptions{Namespace: key.Namespace, FieldSelector: nameOnly(key), Raw: &o})
			switch {
			case err == nil:
				failures = 0
			case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
				stop()
			default:
				failures++
				jitter.Wait(ctx, jitter.Bound(failures))
			}
			return w, err
		},
	})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		object, ok := event.Object.(*corev1.ConfigMap)
		if !ok || event.Type == watch.Bookmark {
			continue
		}
		c.mu.Lock()
		now := followedMap{idle: c.known[key].idle}
		if event.Type != watch.Deleted {
			now.values = contentOf(object)
		}
		c.known[key] = now
		c.mu.Unlock()
	}
	return ctx.Err()
}
