package controllers

import (
	"context"
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

// newInformer makes an informer that notices within lastBackOff that the API server is back. client-go's own informer waits up to a
// minute after an outage of minutes, or the sixth short one in a row (https://github.com/kubernetes/client-go/blob/master/tools/cache/reflector.go,
// defaultBackoffMax and its jitter), and offers no setting. So the errors that would make it wait are kept from it.
func newInformer(lw toolscache.ListerWatcher, kind runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	from := toolscache.ToListerWatcherWithContext(lw)
	return toolscache.NewSharedIndexInformer(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return retryWhileAway(ctx, func() (runtime.Object, error) { return from.ListWithContext(ctx, o) })
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := retryWhileAway(ctx, func() (watch.Interface, error) { return from.WatchWithContext(ctx, o) })
			if err != nil {
				return nil, err
			}
			return withoutOutages(w), nil
		},
	}, kind, resync, indexers)
}

// shortestWatch is how long a watch has to last: client-go takes one that ends earlier, without an event, for an error.
const shortestWatch = 1100 * time.Millisecond

// withoutOutages returns a watch with the events of w. It ends when w ends or reports that the API server is away, but not before
// shortestWatch.
func withoutOutages(w watch.Interface) watch.Interface {
	earliest := time.NewTimer(shortestWatch)
	events := make(chan watch.Event)
	out := watch.NewProxyWatcher(events)
	go func() {
		defer close(events)
		defer earliest.Stop()
		defer w.Stop()
		for {
			select {
			case <-out.StopChan():
				return
			case e, more := <-w.ResultChan():
				if !more || e.Type == watch.Error && away(apierrors.FromObject(e.Object)) {
					select {
					case <-earliest.C:
					case <-out.StopChan():
					}
					return
				}
				select {
				case events <- e:
				case <-out.StopChan():
					return
				}
			}
		}
	}()
	return out
}

// rightsLimit is how long an answer that the agent lacks a right counts as an outage: an API server that starts gives it until it has
// read the roles.
const rightsLimit = 30 * time.Second

// retryWhileAway calls f again while the API server is away. It returns f's first other answer, or its last one when ctx ends.
func retryWhileAway[T any](ctx context.Context, f func() (T, error)) (T, error) {
	start := time.Now()
	for wait := firstOutageWait; ; wait = min(2*wait, longestWait(time.Since(start))) {
		got, err := f()
		starting := (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)) && time.Since(start) < rightsLimit
		if err == nil || !away(err) && !starting {
			return got, err
		}
		select {
		case <-ctx.Done():
			return got, err
		case <-time.After(wait):
		}
	}
}

// How long to wait while the API server is away: at first, and at most in an outage of less than shortOutage, such as a restart. An API
// server that starts answers one kind of request after the other.
const (
	firstOutageWait    = 500 * time.Millisecond
	longestInAShortOne = 4 * time.Second
	shortOutage        = time.Minute
)

// longestWait bounds the next wait in an outage that has lasted for so long.
func longestWait(outage time.Duration) time.Duration {
	if outage < shortOutage {
		return longestInAShortOne
	}
	return lastBackOff
}

// away reports whether an error says that the API server cannot be reached, or cannot answer for now. A timeout that the API
// server itself reports does not count: client-go may then ask for another resource version.
func away(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return true
	}
	code := answer.Status().Code
	return !apierrors.IsTimeout(err) && (code >= http.StatusInternalServerError || code == http.StatusTooManyRequests)
}
