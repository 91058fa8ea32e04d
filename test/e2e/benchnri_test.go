package e2e

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// starts is how many pods are started at once, with the agent and without it in turn, rounds times.
const (
	starts = 100
	rounds = 3
)

// measureCalls tells how long NRI calls hold the runtime, by the agent's own clock.
func measureCalls(b *testing.B) []row {
	b.Helper()
	const name = "RunPodSandbox holds the runtime"
	rows := []row{}
	for _, kind := range []struct {
		name, result  string
		annotations   map[string]string
		median, worst string
	}{
		{"a pod that is programmed", "programmed", asked(), "< 3", "< 15"},
		{"a pod that did not ask", "passed", nil, "< 0.1", "reported"},
	} {
		s := newSpace(b, nil)
		before := s.metrics(b)
		s.startPlain(b, starts, kind.annotations)
		held := s.metrics(b).held(before, "RunPodSandbox", kind.result)
		rows = append(rows,
			newRow(name+", "+kind.name, "ms p50", held.quantile(50), 0, kind.median),
			newRow(name+", "+kind.name, "ms p99", held.quantile(99), 0, kind.worst))
		s.clear(b)
	}
	return rows
}

// measureStarts compares the time from pods being made to all of them running.
func measureStarts(b *testing.B) []row {
	b.Helper()
	var with, without []float64
	for range rounds {
		s := newSpace(b, nil)
		with = append(with, s.startPlain(b, starts, asked()).Seconds())
		s.clear(b)
		back := s.sendAgentAway(b)
		without = append(without, s.startPlain(b, starts, asked()).Seconds())
		s.clear(b)
		back()
	}
	return []row{newRow(fmt.Sprintf("from %d pods being made to all running, with the agent against without", starts),
		"s p50", quantile(with, 50), quantile(without, 50), "< 1.03")}
}

// startPlain starts pods of one container at once, and tells how long it took until all ran.
func (s *space) startPlain(b *testing.B, n int, annotations map[string]string) time.Duration {
	b.Helper()
	began := time.Now()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			pod := newPod(fmt.Sprintf("plain-%d", i), annotations, appContainer())
			if _, err := s.pods().Create(b.Context(), pod, metav1.CreateOptions{}); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
	s.awaitAll(b, n, isRunning)
	return time.Since(began)
}

// clear deletes the namespace's pods, and waits until they are gone.
func (s *space) clear(b *testing.B) {
	b.Helper()
	now := int64(0)
	must(b, s.pods().DeleteCollection(b.Context(), metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}))
	s.awaitAll(b, 0, func(*corev1.Pod) error { return nil })
}

// histogram is how many calls took at most so many seconds, by that bound.
type histogram map[float64]float64

// held is what the agent's histogram of NRI calls has gained since before.
func (m metrics) held(before metrics, call, result string) histogram {
	h := histogram{}
	for series, n := range m {
		if !strings.HasPrefix(series, metricPrefix+"nri_call_duration_seconds_bucket{") ||
			!strings.Contains(series, `call="`+call+`"`) || !strings.Contains(series, `result="`+result+`"`) {
			continue
		}
		_, bound, _ := strings.Cut(series, `le="`)
		bound, _, _ = strings.Cut(bound, `"`)
		if le, err := strconv.ParseFloat(bound, 64); err == nil {
			h[le] = n - before[series]
		}
	}
	return h
}

// quantile estimates, in milliseconds, what so many percent of the calls did not exceed: evenly spread within a bucket.
func (h histogram) quantile(percent int) float64 {
	bounds := make([]float64, 0, len(h))
	for le := range h {
		bounds = append(bounds, le)
	}
	slices.Sort(bounds)
	lower, below := 0.0, 0.0
	want := h[math.Inf(1)] * float64(percent) / 100
	for _, le := range bounds {
		if h[le] >= want && h[le] > below && !math.IsInf(le, 1) {
			return 1000 * (lower + (le-lower)*(want-below)/(h[le]-below))
		}
		lower, below = le, h[le]
	}
	return 1000 * lower
}
