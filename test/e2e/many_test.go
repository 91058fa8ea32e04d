package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A node that starts after a power cut has all of its pods at once; the API server has all nodes at once.
//
// Not parallel: it counts the agent's requests.
//
//e2e:rounds nftables
func TestManyPodsAtOnceCostOneWriteEach(t *testing.T) {
	const many = 30
	s := newQuietSpace(t, asked())
	before := s.metrics(t)
	took := s.startMany(t, many)
	after := s.metrics(t)
	t.Logf("%d pods were initialized %s after they were made; the agent's RSS is %.1f MiB", many, took.Round(time.Millisecond), after.rss())
	if n := after.writes("PATCH") - before.writes("PATCH"); n != many {
		t.Errorf("the agent sent %v PATCH requests, want one a pod", n)
	}
	if n := after.writes("POST", "PUT", "DELETE") - before.writes("POST", "PUT", "DELETE"); n != 0 {
		t.Errorf("the agent sent %v other requests that write, want none; its events: %s", n, s.agentEvents(t))
	}
	if n := after.ensured("changed") - before.ensured("changed"); n < many || n > 2*many { // once more when the proxy listens, if it did not yet
		t.Errorf("the agent programmed namespaces %v times, want %d to %d", n, many, 2*many)
	}
	list, err := s.pods().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for i := range list.Items {
		pod := &list.Items[i]
		if got, want := readDetails(t, pod).Sandbox, s.sandboxOf(t, pod).ID; got != want {
			t.Errorf("pod %s: details name sandbox %s, it runs in %s", pod.Name, got, want)
		}
	}
	wantInbound(t, s.awaitAnswer(t, "many-0"), families()[0], appPort, true)
	wantInbound(t, s.awaitAnswer(t, fmt.Sprintf("many-%d", many-1)), families()[1], appPort, true)
}

// startMany makes n pods at once and tells how long it took until all were initialized. It returns when all run: by then
// the kubelet has changed each a few times more, which must not move the agent to anything.
func (s *space) startMany(t testing.TB, n int) time.Duration {
	t.Helper()
	began := time.Now()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if _, err := s.pods().Create(t.Context(), meshPod(fmt.Sprintf("many-%d", i), nil), metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s.awaitAll(t, n, hasStatus(statusInitialized))
	took := time.Since(began)
	s.awaitAll(t, n, isRunning)
	return took
}

// awaitAll waits until there are n pods, all as check wants them.
func (s *space) awaitAll(t testing.TB, n int, check func(*corev1.Pod) error) {
	t.Helper()
	within(t, patience+time.Duration(n)*time.Second/2, fmt.Sprintf("%d pods", n), func(ctx context.Context) error {
		list, err := s.pods().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != n {
			return fmt.Errorf("there are %d pods", len(list.Items))
		}
		for i := range list.Items {
			if err := check(&list.Items[i]); err != nil {
				return fmt.Errorf("pod %s: %w", list.Items[i].Name, err)
			}
		}
		return nil
	})
}

// rss is the agent's resident memory in MiB.
func (m metrics) rss() float64 { return m.sum("process_resident_memory_bytes") / (1 << 20) }

// agentEvents lists what the agent has told as events, the newest last, for a reader of a failed run.
func (s *space) agentEvents(t *testing.T) string {
	t.Helper()
	list, err := s.api.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	slices.SortFunc(list.Items, func(a, b eventsv1.Event) int { return a.EventTime.Compare(b.EventTime.Time) })
	var out strings.Builder
	for i := range list.Items {
		if e := &list.Items[i]; e.ReportingController == agentName {
			fmt.Fprintf(&out, "\n%s %s/%s %s: %s", e.EventTime.Format(time.TimeOnly), e.Regarding.Namespace, e.Regarding.Name, e.Reason, e.Note)
		}
	}
	return out.String()
}
