package outage

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
		informer := (&Contact{}).Informer(&toolscache.ListWatch{
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
		<-time.After(outage + lastWait + 5*time.Second)
		if !informer.HasSynced() || refused < int(outage/lastWait) {
			t.Errorf("synced %t after %d refusals", informer.HasSynced(), refused)
		}
		cancel()
		<-ended
	})
}

// versionToCome is the answer of a server that has not seen a resource version yet.
func versionToCome() error {
	err := apierrors.NewTimeoutError("Too large resource version", 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	return err
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
		"no answer in time":     {apierrors.NewTimeoutError("no", 1), true},
		"a version to come":     {versionToCome(), false},
		"no right":              {apierrors.NewForbidden(pods, "", errors.New("no")), false},
	} {
		if got := away(c.err); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// flapping is an API server that is there for half of each period. Its watches end when it goes.
type flapping struct {
	refuses error
	ends    func(*watch.FakeWatcher)

	start, ended time.Time
	lists        int
	longest      time.Duration // without a watch
}

const flapPeriod = 20 * time.Second

// goesIn returns how long the server is still there; it is not positive while it is away.
func (f *flapping) goesIn() time.Duration { return flapPeriod/2 - time.Since(f.start)%flapPeriod }

func (f *flapping) list(context.Context, metav1.ListOptions) (runtime.Object, error) {
	if f.lists++; f.goesIn() <= 0 {
		return nil, f.refuses
	}
	return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
}

func (f *flapping) watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	switch {
	case f.goesIn() <= 0:
		return nil, f.refuses
	case o.SendInitialEvents != nil:
		return nil, apierrors.NewBadRequest("not known to this API server")
	}
	f.longest = max(f.longest, time.Since(f.ended))
	w := watch.NewFake()
	time.AfterFunc(f.goesIn()+10*time.Millisecond, func() {
		f.ended = time.Now()
		f.ends(w)
	})
	return w, nil
}

// An API server that comes and goes must not make the agent wait longer and longer.
func TestTheCacheIsThereSoonAfterManyOutages(t *testing.T) {
	pods, lost := schema.GroupResource{Resource: "pods"}, apierrors.NewInternalError(errors.New("http2: client connection lost")).Status()
	for name, server := range map[string]*flapping{
		"it is away":                  {refuses: syscall.ECONNREFUSED, ends: (*watch.FakeWatcher).Stop},
		"it has not read the roles":   {refuses: apierrors.NewForbidden(pods, "", errors.New("no")), ends: (*watch.FakeWatcher).Stop},
		"it does not know the tokens": {refuses: apierrors.NewUnauthorized("no"), ends: (*watch.FakeWatcher).Stop},
		"it says that it goes":        {refuses: syscall.ECONNREFUSED, ends: func(w *watch.FakeWatcher) { w.Error(&lost) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server.start, server.ended = time.Now(), time.Now()
				informer := (&Contact{}).Informer(&toolscache.ListWatch{ListWithContextFunc: server.list, WatchFuncWithContext: server.watch}, &corev1.Pod{}, 0, toolscache.Indexers{})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); informer.RunWithContext(ctx) }()
				<-time.After(15 * time.Minute)
				cancel()
				<-done
				if away := flapPeriod/2 + 10*time.Millisecond; server.longest > away+longestInAShortOne || server.lists > 10 {
					t.Errorf("%s without a watch, %d lists", server.longest, server.lists)
				}
			})
		})
	}
}

func TestAWatchKeepsWhatIsNoOutage(t *testing.T) {
	in := watch.NewFake()
	out := withoutOutages(in, time.Now())
	expired := apierrors.NewResourceExpired("old").Status()
	go func() {
		in.Add(&corev1.Pod{})
		in.Error(&expired)
	}()
	for _, want := range []watch.EventType{watch.Added, watch.Error} {
		if got := (<-out.ResultChan()).Type; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	out.Stop()
	for range out.ResultChan() { // it ends
	}
	if !in.IsStopped() {
		t.Error("the watch of the API server goes on")
	}
}

func TestRetryWhileAway_answers_areContactUnlessTheyRefuseTheAgent(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"a list":                {nil, true},
		"an old version":        {apierrors.NewResourceExpired("old"), true},
		"a version to come":     {versionToCome(), true},
		"an unknown parameter":  {apierrors.NewBadRequest("no"), true},
		"a right is missing":    {apierrors.NewForbidden(pods, "", errors.New("no")), false},
		"the token has expired": {apierrors.NewUnauthorized("no"), false},
		"too many requests":     {apierrors.NewTooManyRequests("later", 1), false},
		"no answer in time":     {apierrors.NewTimeoutError("no", 1), false},
		"no connection":         {refused("pods"), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var c Contact
				asked, contact := 0, true
				_, _ = retryWhileAway(t.Context(), &c, &corev1.Pod{}, func() (int, error) {
					if asked++; asked == 1 {
						return 0, tc.err
					}
					contact = c.Err() == nil // of the attempt before
					return 0, nil
				})
				if contact != tc.want || c.Err() != nil {
					t.Errorf("contact %t, want %t; at the end %v", contact, tc.want, c.Err())
				}
			})
		})
	}
}

// An agent that ends cancels its requests, and must not say that the API server is away.
func TestRetryWhileAway_contextEnds_isNoOutage(t *testing.T) {
	var c Contact
	ctx, cancel := context.WithCancel(t.Context())
	_, err := retryWhileAway(ctx, &c, &corev1.Pod{}, func() (int, error) { cancel(); return 0, ctx.Err() })
	if !errors.Is(err, context.Canceled) || c.Err() != nil {
		t.Errorf("returned %v, noted %v", err, c.Err())
	}
}

// Between the end of a watch and the next one the agent learns of no pod.
func TestWithoutOutages_endOfAWatch_isLateBySecondsOnlyIfItWasShort(t *testing.T) {
	for name, c := range map[string]struct {
		lasts, planned time.Duration
		least, most    time.Duration // how much later it ends
	}{
		"a regular end":              {lasts: 6 * time.Minute, planned: 6 * time.Minute},
		"a cut":                      {lasts: 2 * time.Minute, planned: 6 * time.Minute, least: 1, most: longestAfterACut},
		"a short one that is cut":    {lasts: 30 * time.Second, planned: 6 * time.Minute, least: 1, most: longestInAShortOne / 2},
		"a regular one that is soon": {planned: 0, least: shortestWatch, most: shortestWatch},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for range 30 { // waits are random
					in, began := watch.NewFake(), time.Now()
					out := withoutOutages(in, began.Add(c.planned))
					<-time.After(c.lasts)
					in.Stop()
					for range out.ResultChan() { // until it ends
					}
					if late := time.Since(began) - c.lasts; late < c.least || late > c.most {
						t.Errorf("it ends %s late", late)
					}
				}
			})
		})
	}
}

// Agents whose watches a server cuts at one moment watch again at different ones.
func TestWithoutOutages_watchesCutAtOnce_endAtDifferentTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := func() time.Time {
			in := watch.NewFake()
			out := withoutOutages(in, time.Now().Add(6*time.Minute))
			<-time.After(2 * time.Minute)
			in.Stop()
			for range out.ResultChan() { // until it ends
			}
			return time.Now()
		}
		other := make(chan time.Time)
		go func() { other <- end() }()
		if one := end(); one.Equal(<-other) {
			t.Errorf("both end at %s", one)
		}
	})
}
