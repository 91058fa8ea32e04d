package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
)

// countingRuntime has a sandbox for each UID, and counts questions. A list takes 100 ms.
type countingRuntime struct {
	runtimeFinder
	lists, finds, statuses atomic.Int32
	missing                string // has no sandbox in the list
	err                    error  // of FindAll
}

func (r *countingRuntime) FindAll(context.Context) (func(context.Context, podnet.Sandbox) (podnet.Sandbox, error), error) {
	r.lists.Add(1)
	<-time.After(100 * time.Millisecond)
	return func(_ context.Context, pod podnet.Sandbox) (podnet.Sandbox, error) {
		r.statuses.Add(1)
		if pod.UID == r.missing {
			return pod, fmt.Errorf("list: %w", podnet.ErrNotReady)
		}
		pod.ID = "of the list"
		return pod, nil
	}, r.err
}

func (r *countingRuntime) Find(_ context.Context, pod podnet.Sandbox) (podnet.Sandbox, error) {
	r.finds.Add(1)
	pod.ID = "asked for"
	return pod, nil
}

// findAll finds the sandboxes of 250 pods at once, and returns those that were asked for one by one.
func findAll(t *testing.T, f *firstFinds) (asked []string) {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range 250 {
		wg.Go(func() {
			s, err := f.Find(t.Context(), podnet.Sandbox{UID: fmt.Sprint(i)})
			if err != nil {
				t.Error(err)
			}
			if mu.Lock(); s.ID != "of the list" {
				asked = append(asked, s.UID)
			}
			mu.Unlock()
		})
	}
	wg.Wait()
	return asked
}

func TestAnAgentThatStartsListsSandboxesOnce(t *testing.T) {
	for name, c := range map[string]struct {
		runtime *countingRuntime
		asked   int
	}{
		"all run":                {&countingRuntime{}, 0},
		"one is not in the list": {&countingRuntime{missing: "7"}, 1},
		"the list fails":         {&countingRuntime{err: errors.New("no")}, 250},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, start := &firstFinds{runtime: c.runtime}, time.Now()
				asked := findAll(t, f)
				if len(asked) != c.asked || c.runtime.lists.Load() != 1 || int(c.runtime.finds.Load()) != c.asked {
					t.Errorf("asked for %v: %d lists, %d questions", asked, c.runtime.lists.Load(), c.runtime.finds.Load())
				}
				if took := time.Since(start); took != 100*time.Millisecond {
					t.Errorf("took %s", took)
				}
			})
		})
	}
}

// The list is old a moment later: the runtime is asked for each pod again.
func TestASecondFindAsksTheRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &countingRuntime{}
		f := &firstFinds{runtime: r}
		findAll(t, f)
		if asked := findAll(t, f); len(asked) != 250 {
			t.Errorf("%d of 250 pods asked for", len(asked))
		}
		<-time.After(firstListAge)
		synctest.Wait()
		if f.list.Load() != nil {
			t.Error("the list is kept")
		}
		if s, err := f.Find(t.Context(), podnet.Sandbox{UID: "new"}); err != nil || s.ID != "asked for" || r.lists.Load() != 1 {
			t.Errorf("found %+v, error %v, %d lists", s, err, r.lists.Load())
		}
	})
}

func TestAFirstFindEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		f := &firstFinds{runtime: &countingRuntime{}}
		if _, err := f.Find(ctx, podnet.Sandbox{UID: "1"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		<-f.list.Load().made
	})
}

// startedPods are pods that ask for redirection and run.
type startedPods struct{}

func (startedPods) Pod(_ context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, UID: types.UID(s.UID), Annotations: map[string]string{intent.KeyInitialize: "true"}},
		Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "192.0.2.1"}}},
	}, nil
}

func (p startedPods) Current(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	return p.Pod(ctx, s)
}

func (startedPods) Namespace(context.Context, string) (*corev1.Namespace, error) { return nil, nil }

func (startedPods) CurrentNamespace(context.Context, string) (*corev1.Namespace, error) {
	return nil, nil
}

// netnsRuntime is a countingRuntime whose sandboxes have a path.
type netnsRuntime struct{ *countingRuntime }

func (r netnsRuntime) FindAll(ctx context.Context) (func(context.Context, podnet.Sandbox) (podnet.Sandbox, error), error) {
	find, err := r.countingRuntime.FindAll(ctx)
	return func(ctx context.Context, pod podnet.Sandbox) (podnet.Sandbox, error) {
		pod, err := find(ctx, pod)
		pod.ID, pod.NetNS = "sandbox-"+pod.UID, "/netns/"+pod.UID
		return pod, err
	}, err
}

// An agent that starts on a node whose 250 pods have their rules writes none, and asks the runtime for one list.
func TestARestartAmong250PodsCostsOneList(t *testing.T) {
	r, n, ledger := &countingRuntime{}, &fakeNamespace{rules: true}, controllers.NewLedger()
	counters, err := controllers.NewMetrics(prometheus.NewRegistry(), ledger)
	if err != nil {
		t.Fatal(err)
	}
	p := &controllers.Programmer{
		Config: intent.Config{Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults()}, Backend: n, BackendName: "fake", Namespaces: n,
		Pods: startedPods{}, Reporter: noReports{}, Ledger: ledger, Metrics: counters, Finder: &firstFinds{runtime: netnsRuntime{r}},
		Announcers: []func() bool{func() bool { return true }},
	}
	for i := range 250 {
		s := podnet.Sandbox{Namespace: "shop", Name: fmt.Sprint("pod-", i), UID: fmt.Sprint("uid-", i)}
		if result, err := p.Ensure(t.Context(), controllers.Watch, s); result != controllers.Unchanged || err != nil {
			t.Fatalf("%s: result %s, error %v", s.Name, result, err)
		}
	}
	if lists, finds, statuses := r.lists.Load(), r.finds.Load(), r.statuses.Load(); lists != 1 || finds != 0 || statuses != 250 || n.applied != 250 {
		t.Errorf("%d lists of all, %d of one pod, %d questions for a status; Apply called %d times", lists, finds, statuses, n.applied)
	}
}
