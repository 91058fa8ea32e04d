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
// minute after an outage of minutes (https://github.com/kubernetes/client-go/blob/master/tools/cache/reflector.go,
// defaultBackoffMax and its jitter), and offers no setting.
func newInformer(lw toolscache.ListerWatcher, kind runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	from := toolscache.ToListerWatcherWithContext(lw)
	return toolscache.NewSharedIndexInformer(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return retryWhileAway(ctx, func() (runtime.Object, error) { return from.ListWithContext(ctx, o) })
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return retryWhileAway(ctx, func() (watch.Interface, error) { return from.WatchWithContext(ctx, o) })
		},
	}, kind, resync, indexers)
}

// retryWhileAway calls f again while the API server is away. It returns f's first other answer, or its last one when ctx ends.
func retryWhileAway[T any](ctx context.Context, f func() (T, error)) (T, error) {
	for wait := firstOutageWait; ; wait = min(2*wait, lastBackOff) {
		got, err := f()
		if err == nil || !away(err) {
			return got, err
		}
		select {
		case <-ctx.Done():
			return got, err
		case <-time.After(wait):
		}
	}
}

// firstOutageWait is the first wait while the API server is away.
const firstOutageWait = 500 * time.Millisecond

// away reports whether an error says that the API server cannot be reached, or cannot answer for now. A time-out that the API
// server itself reports is not away: the caller may ask for another resource version then.
func away(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return true
	}
	code := answer.Status().Code
	return !apierrors.IsTimeout(err) && (code >= http.StatusInternalServerError || code == http.StatusTooManyRequests)
}
