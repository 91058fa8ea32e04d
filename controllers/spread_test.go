package controllers

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
)

// timedBackend counts the calls of Apply by time, and how many run at once. The namespaces hold the rules already.
type timedBackend struct {
	fakeBackend
	mu      sync.Mutex
	start   time.Time
	took    time.Duration
	calls   map[string][]time.Duration
	working int
	most    int
}

func (b *timedBackend) Apply(_ context.Context, at podnet.Place, _ iptables.Ruleset) (iptables.Outcome, error) {
	b.mu.Lock()
	b.calls[at.Path] = append(b.calls[at.Path], time.Since(b.start))
	b.working++
	b.most = max(b.most, b.working)
	b.mu.Unlock()
	<-time.After(b.took)
	b.mu.Lock()
	b.working--
	b.mu.Unlock()
	return iptables.Outcome{}, nil
}

func newTimed(b *bench, took time.Duration) *timedBackend {
	t := &timedBackend{start: time.Now(), took: took, calls: map[string][]time.Duration{}}
	b.Backend, b.Namespaces = t, t
	return t
}

// manyUID begins the UIDs of addPods.
const manyUID = "6f1c6f0e-0000-4000-8000-"

// addPods puts pods into the ledger, and lets them be read.
func (b *bench) addPods(n int) {
	for i := range n {
		s := podnet.Sandbox{
			Namespace: "shop", Name: fmt.Sprint("pod-", i), UID: fmt.Sprint(manyUID, i),
			ID: fmt.Sprint("sandbox-", i), NetNS: fmt.Sprint("/netns/", i),
		}
		b.Ledger.Put(Entry{Sandbox: s, State: Programmed})
	}
	b.Pods = &manyPods{}
}

// manyPods has a pod that asks for redirection for each sandbox.
type manyPods struct{ fakePods }

func (*manyPods) Pod(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	pod := askingPod()
	pod.Namespace, pod.Name, pod.UID = s.Namespace, s.Name, types.UID(s.UID)
	return pod, ctx.Err()
}

func TestChecksAreSpreadOverTheInterval(t *testing.T) {
	const pods, interval = 250, 10 * time.Second
	for name, started := range map[string]time.Duration{"first start": 0, "start three seconds later": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				<-time.After(started)
				b := newBench(t)
				b.addPods(pods)
				kernel := newTimed(b, time.Millisecond)
				verifyFor(t, b, interval, time.Minute)
				if len(kernel.calls) != pods || kernel.most > 1 {
					t.Errorf("%d pods checked, %d at once", len(kernel.calls), kernel.most)
				}
				for path, calls := range kernel.calls {
					checkGaps(t, path, calls, interval)
				}
				checkLoad(t, kernel, 3*pods/10)
			})
		})
	}
}

// checkGaps wants checks about an interval apart, for a minute.
func checkGaps(t *testing.T, path string, calls []time.Duration, interval time.Duration) {
	t.Helper()
	if len(calls) < 5 || len(calls) > 7 {
		t.Errorf("%s: checked %d times in a minute", path, len(calls))
	}
	last := time.Duration(0)
	for _, at := range calls {
		if gap := at - last; gap > interval*11/10+longestTick+time.Second || last > 0 && gap < interval*9/10-time.Second {
			t.Errorf("%s: checked after %s", path, gap)
		}
		last = at
	}
}

// checkLoad wants at most so many checks in each second.
func checkLoad(t *testing.T, kernel *timedBackend, most int) {
	t.Helper()
	second := map[int]int{}
	for _, calls := range kernel.calls {
		for _, at := range calls {
			second[int(at/time.Second)]++
		}
	}
	for s, n := range second {
		if n > most {
			t.Errorf("%d checks in second %d", n, s)
		}
	}
}

// A pod's phase is its own, and does not depend on the process.
func TestARestartDoesNotAlignChecks(t *testing.T) {
	s := schedule{interval: 10 * time.Second}
	start := time.Unix(1_700_000_000, 0)
	for i := range 100 {
		uid := fmt.Sprint("uid-", i)
		first := s.next(uid, start)
		restarted := s.next(uid, first.Add(-time.Millisecond))
		if !first.Equal(restarted) || first.Sub(start) > s.interval*11/10 {
			t.Errorf("%s: due %s, after a restart %s", uid, first, restarted)
		}
		if gap := s.next(uid, first).Sub(first); gap < s.interval*9/10 || gap > s.interval*11/10 {
			t.Errorf("%s: next check after %s", uid, gap)
		}
	}
}

// Agents that check at the same moments would be a fleet in step.
func TestWait_twoAgents_areNotInStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waits [2]time.Duration
		for i := range waits {
			b := newBench(t)
			b.VerifyInterval = 10 * time.Second
			b.ensure(t, Changed)
			newWorkWatch(b).queue.ShutDown()
			waits[i] = b.wait("uid-1")
		}
		if waits[0] == waits[1] {
			t.Errorf("both check after %s", waits[0])
		}
	})
}

// A pod that keeps the kernel busy holds up itself only.
func TestAPodThatHangsDelaysNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.addPods(50)
		kernel := newTimed(b, 0)
		hung := make(chan struct{})
		b.Backend = hangingBackend{kernel, "/netns/7", hung}
		verifyFor(t, b, 2*time.Second, 20*time.Second)
		close(hung)
		for path, calls := range kernel.calls {
			if len(calls) < 8 {
				t.Errorf("%s: checked %d times in 20 s", path, len(calls))
			}
		}
	})
}

type hangingBackend struct {
	*timedBackend
	path string
	hung chan struct{}
}

func (b hangingBackend) Apply(ctx context.Context, at podnet.Place, want iptables.Ruleset) (iptables.Outcome, error) {
	if at.Path != b.path {
		return b.timedBackend.Apply(ctx, at, want)
	}
	select {
	case <-ctx.Done():
	case <-b.hung:
	}
	return iptables.Outcome{}, ctx.Err()
}
