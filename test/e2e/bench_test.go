package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// singles is how many pods are measured one after the other; crowd is how many at once.
const (
	singles = 40
	crowd   = 50
)

// few is how many of n a benchmark measures: all, or hardly any if E2E_BENCH is small. Then the figures say nothing, but the benchmarks work.
func few(n int) int {
	if isSmall() {
		return 1 + n/40
	}
	return n
}

func isSmall() bool { return os.Getenv("E2E_BENCH") == "small" }

// measurements are what BenchmarkAgent measures with each hook.
func measurements() map[string]func(*testing.B) []row {
	if hook() == "nri" {
		return map[string]func(*testing.B) []row{"OneByOne": measureOneByOne, "Burst": measureBurst, "Sidecars": measureSidecars, "Shared": measureShared}
	}
	return map[string]func(*testing.B) []row{"Singles": measureSingles, "Crowd": measureCrowd}
}

// BenchmarkAgent measures what a pod costs and adds rows to the file that BENCH_JSON names. It reports and judges nothing.
// hack/bench.sh runs it, once with an agent that watches only, and once with NRI and the proxy manager. -test.bench Agent/Sidecars
// chooses one of the measurements. CI runs all of them with small sizes.
func BenchmarkAgent(b *testing.B) {
	file := os.Getenv("BENCH_JSON")
	if isSmall() {
		file = filepath.Join(b.TempDir(), "bench.json")
	} else if file == "" {
		b.Fatal("BENCH_JSON does not name the file to write to")
	}
	for name, measure := range measurements() {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				_, err := addRows(file, measure(b))
				must(b, err)
			}
		})
	}
	all, err := addRows(file, nil)
	must(b, err)
	must(b, printRows(os.Stdout, all))
}

// measureSingles makes one pod after the other on a node that does nothing else.
func measureSingles(b *testing.B) []row {
	b.Helper()
	s := newSpace(b, asked())
	w := s.watch(b)
	patched, container := make([]float64, 0, singles), make([]float64, 0, singles)
	for i := range few(singles) {
		pod := s.create(b, meshPod(fmt.Sprintf("single-%d", i), nil))
		s.await(b, pod.Name, isRunning)
		s.await(b, pod.Name, hasStatus(statusInitialized))
		var m moments
		eventually(b, "the moments of "+pod.Name, func(context.Context) error {
			var err error
			m, err = w.of(pod.Name)
			return err
		})
		patched = append(patched, milliseconds(m.patched.Sub(m.ready)))
		container = append(container, milliseconds(m.container.Sub(m.ready)))
	}
	const name = "from the sandbox being ready to status patched, against its first container's start"
	return []row{
		newRow(name, "ms p50", quantile(patched, 50), quantile(container, 50), "< 150"),
		newRow(name, "ms p95", quantile(patched, 95), quantile(container, 95), "reported"),
	}
}

// measureCrowd makes many pods at once.
func measureCrowd(b *testing.B) []row {
	b.Helper()
	s := newSpace(b, asked())
	s.awaitTidyNode(b, s.agent(b))
	before := s.metrics(b)
	n := few(crowd)
	took := s.startMany(b, n)
	after := s.metrics(b)
	writes := after.writes("PATCH", "POST", "PUT", "DELETE") - before.writes("PATCH", "POST", "PUT", "DELETE")
	return []row{
		newRow(fmt.Sprintf("API writes a pod, %d pods at once", n), "count", writes/float64(n), 0, "1"),
		newRow(fmt.Sprintf("RSS of the agent with %d pods, against without", n), "MiB", after.rss(), before.rss(), "< 60"),
		newRow(fmt.Sprintf("from %d pods being made to all initialized", n), "s", took.Seconds(), 0, "reported"),
	}
}

// moments are when things happened to a pod, by one clock.
type moments struct{ ready, container, patched time.Time }

// watcher notes the moments of a namespace's pods.
type watcher struct {
	mu   sync.Mutex
	pods map[string]moments
}

// watch notes moments until the test ends.
func (s *space) watch(b *testing.B) *watcher {
	b.Helper()
	w := &watcher{pods: map[string]moments{}}
	pods, err := s.pods().Watch(b.Context(), metav1.ListOptions{})
	must(b, err)
	var ended sync.WaitGroup
	ended.Go(func() {
		for e := range pods.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok && pod.Annotations[keyStatus] == statusInitialized {
				w.note(pod.Name, func(m *moments) { first(&m.patched, time.Now()) })
			}
		}
	})
	b.Cleanup(func() { pods.Stop(); ended.Wait() })
	s.watchRuntime(b, func(e startedEvent) {
		w.note(e.pod, func(m *moments) {
			if e.sandbox {
				first(&m.ready, e.at)
			} else {
				first(&m.container, e.at)
			}
		})
	})
	return w
}

// watchRuntime calls f for each sandbox and container of the namespace that starts, until the test ends.
func (s *space) watchRuntime(b *testing.B, f func(startedEvent)) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := s.started(ctx, s.name, f); err != nil {
			b.Error(err)
		}
	})
	b.Cleanup(func() { cancel(); ended.Wait() })
}

func (w *watcher) note(pod string, f func(*moments)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.pods[pod]
	f(&m)
	w.pods[pod] = m
}

// of gives the moments of a pod once all are known.
func (w *watcher) of(pod string) (moments, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.pods[pod]
	if m.ready.IsZero() || m.container.IsZero() || m.patched.IsZero() {
		return m, fmt.Errorf("not all are known: %+v", m)
	}
	return m, nil
}

func first(at *time.Time, now time.Time) {
	if at.IsZero() {
		*at = now
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// quantile is the value that so many percent of the values do not exceed.
func quantile(values []float64, percent int) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)*percent-1)/100]
}
