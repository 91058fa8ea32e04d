package controllers

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

// After an outage of minutes the agent's caches must not be a minute late.
func TestTheCacheIsThereSoonAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const outage = 20 * time.Minute
		start, refused := time.Now(), 0
		informer := CacheOptions("node").NewInformer(&toolscache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				if time.Since(start) < outage {
					refused++
					return nil, syscall.ECONNREFUSED
				}
				return &corev1.PodList{}, nil
			},
			WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
				if time.Since(start) < outage {
					refused++
					return nil, syscall.ECONNREFUSED
				}
				if o.SendInitialEvents != nil {
					return nil, apierrors.NewBadRequest("not known to this API server")
				}
				return watch.NewFake(), nil
			},
		}, &corev1.Pod{}, 0, toolscache.Indexers{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); informer.RunWithContext(ctx) }()
		<-time.After(outage + lastBackOff + 5*time.Second)
		if !informer.HasSynced() || refused < int(outage/lastBackOff) {
			t.Errorf("synced %t after %d refusals", informer.HasSynced(), refused)
		}
		cancel()
		<-ended
	})
}

func TestWhatAnOutageIs(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"connection refused":    {syscall.ECONNREFUSED, true},
		"too many requests":     {apierrors.NewTooManyRequests("later", 1), true},
		"an internal error":     {apierrors.NewInternalError(errors.New("etcd")), true},
		"a version that is old": {apierrors.NewResourceExpired("old"), false},
		"a version to come":     {apierrors.NewTimeoutError("too large resource version", 1), false},
		"no right":              {apierrors.NewForbidden(pods, "", errors.New("no")), false},
	} {
		if got := away(c.err); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
