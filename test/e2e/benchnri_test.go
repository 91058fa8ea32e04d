package e2e

import (
	"context"
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

// starts is how many pods are started, with the agent and without it; at once they are so in rounds.
const (
	starts = 100
	rounds = 3
)

// measureOneByOne tells how long NRI calls hold the runtime, by the agent's own clock, and what that is to a pod, on a node
// that starts one pod at a time.
func measureOneByOne(b *testing.B) []row {
	b.Helper()
	s := newSpace(b, nil)
	before := s.metrics(b)
	with := s.startOneByOne(b, "asks", asked())
	s.startOneByOne(b, "does-not", nil)
	after := s.metrics(b)
	s.clear(b)
	back := s.sendAgentAway(b)
	without := s.startOneByOne(b, "alone", asked())
	s.clear(b)
	back()
	rows := []row{newRow("from a pod being made to its container's start, with the agent (NRI) against without", "ms p50",
		quantile(with, 50), quantile(without, 50), "< 1.03")}
	programmed, passed := after.held(before, "RunPodSandbox", "programmed"), after.held(before, "RunPodSandbox", "passed")
	return append(rows,
		newRow("RunPodSandbox holds the runtime, a pod that is programmed", "ms p50", programmed.quantile(50), 0, "< 3"),
		newRow("RunPodSandbox holds the runtime, a pod that is programmed", "ms p99", programmed.quantile(99), 0, "< 15"),
		newRow("RunPodSandbox holds the runtime, a pod that did not ask", "ms p50", passed.quantile(50), 0, "< 0.1"))
}

// measureBurst does the same for many pods at once, which keep all of the node's cores busy.
func measureBurst(b *testing.B) []row {
	b.Helper()
	var with, without []float64
	c := open(b)
	held := histogram{}
	for range few(rounds) {
		s := newSpace(b, nil)
		back := s.sendAgentAway(b)
		without = append(without, s.startPlain(b, few(starts), asked()).Seconds())
		s.clear(b)
		back()
		before := c.metrics(b)
		with = append(with, s.startPlain(b, few(starts), asked()).Seconds())
		held.add(c.metrics(b).held(before, "RunPodSandbox", "programmed"))
		s.clear(b)
	}
	return []row{
		newRow(fmt.Sprintf("from %d pods being made at once to all running, with the agent (NRI) against without", few(starts)), "s p50",
			quantile(with, 50), quantile(without, 50), "reported"),
		newRow(fmt.Sprintf("RunPodSandbox holds the runtime, %d pods at once", few(starts)), "ms p50", held.quantile(50), 0, "reported"),
	}
}

// startOneByOne starts one pod after the other, and gives the milliseconds from each being made to its container's start,
// by the container runtime's clock.
func (s *space) startOneByOne(b *testing.B, name string, annotations map[string]string) []float64 {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	started := make(chan startedEvent, starts)
	var ended sync.WaitGroup
	ended.Go(func() {
		err := s.started(ctx, s.name, func(e startedEvent) {
			if !e.sandbox {
				started <- e
			}
		})
		if err != nil {
			b.Error(err)
		}
	})
	defer ended.Wait()
	defer cancel()
	took := make([]float64, 0, starts)
	for i := range few(starts) {
		pod := newPod(fmt.Sprintf("%s-%d", name, i), annotations, appContainer())
		began := time.Now()
		s.create(b, pod)
		for at := (startedEvent{}); at.pod != pod.Name; {
			select {
			case at = <-started:
				took = append(took, milliseconds(at.at.Sub(began)))
			case <-time.After(patience):
				b.Fatalf("pod %s has not started within %s", pod.Name, patience)
			}
		}
		s.await(b, pod.Name, isRunning) // the node is calm again
	}
	return took
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

func (h histogram) add(more histogram) {
	for le, n := range more {
		h[le] += n
	}
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
