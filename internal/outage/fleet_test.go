package outage

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

// outage is an API server that ends all watches when it goes, and comes back later. It notes when it is asked from then on.
type outage struct {
	goes, back time.Time

	mu    sync.Mutex
	asked [][]time.Time // of each agent
}

func (o *outage) refuses(agent int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if now.Before(o.goes) {
		return nil
	}
	o.asked[agent] = append(o.asked[agent], now)
	if now.Before(o.back) {
		return syscall.ECONNREFUSED
	}
	return nil
}

// watches returns what an agent lists and watches at the server.
func (o *outage) watches(agent int) *toolscache.ListWatch {
	return &toolscache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, o.refuses(agent)
		},
		WatchFuncWithContext: func(_ context.Context, options metav1.ListOptions) (watch.Interface, error) {
			if options.SendInitialEvents != nil {
				return nil, apierrors.NewBadRequest("not known to this API server")
			}
			if err := o.refuses(agent); err != nil {
				return nil, err
			}
			w := watch.NewFake()
			if left := time.Until(o.goes); left > 0 {
				time.AfterFunc(left, w.Stop)
			}
			return w, nil
		},
	}
}

// attempts returns when each of some agents asks an API server that is away for a while, as times since it went.
func attempts(t *testing.T, agents int, away time.Duration) [][]time.Duration {
	t.Helper()
	const calm = 30 * time.Second // less than client-go lets a watch last
	server := &outage{goes: time.Now().Add(calm), back: time.Now().Add(calm + away), asked: make([][]time.Time, agents)}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for i := range agents {
		informer := (&Contact{}).Informer(server.watches(i), &corev1.Pod{}, 0, toolscache.Indexers{})
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	<-time.After(calm + away + 2*lastWait)
	cancel()
	running.Wait()
	out := make([][]time.Duration, agents)
	for i, all := range server.asked {
		for _, at := range all {
			out[i] = append(out[i], at.Sub(server.goes))
		}
	}
	return out
}

// Agents in step would be one burst after the other for an API server that starts.
func TestInformer_twoAgentsInOneOutage_tryAtDifferentTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const away = 3 * time.Minute
		each := attempts(t, 2, away)
		for i, at := range each {
			before := time.Duration(0)
			for _, moment := range at {
				bound := longestWait(before)
				if wait := moment - before; wait <= 0 || wait > bound+longestInAShortOne {
					t.Errorf("agent %d: asks %s after the attempt at %s, bound %s", i, wait, before, bound)
				}
				if slices.Contains(each[1-i], moment) {
					t.Errorf("both ask after %s", moment)
				}
				before = moment
			}
			if last := at[len(at)-1]; last < away || last > away+lastWait {
				t.Errorf("agent %d: back after %s", i, last)
			}
		}
	})
}

func TestInformer_fleetMeetsARestartedServer_noSecondHasMoreThanTwiceTheMean(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const agents, away = 4000, 20 * time.Second // so many that chance does not decide
		second, all, last := map[time.Duration]int{}, 0, time.Duration(0)
		for _, at := range attempts(t, agents, away) {
			for _, moment := range at {
				second[moment/time.Second]++
				all++
				last = max(last, moment)
			}
		}
		mean := float64(all) / last.Seconds()
		for s, n := range second {
			if float64(n) > 2*mean {
				t.Errorf("%d attempts in second %d, %.0f in the mean", n, s, mean)
			}
		}
		if last > away+longestInAShortOne {
			t.Errorf("the last agent is back %s late", last-away)
		}
	})
}
