package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Bounds of the delay between two searches for a sandbox.
const (
	firstDelay = 40 * time.Millisecond
	lastDelay  = 5 * time.Second
)

// waiting remembers since when pods have waited for their sandbox. The delay between two searches grows with the wait: from
// many a second for a pod that was scheduled a moment ago, to one every few seconds. The zero value is ready.
type waiting struct {
	mu    sync.Mutex
	since map[types.NamespacedName]time.Time
}

// delay returns a fifth of the time that the pod has waited, between firstDelay and lastDelay.
func (w *waiting) delay(pod types.NamespacedName, now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since == nil {
		w.since = map[types.NamespacedName]time.Time{}
	}
	start, ok := w.since[pod]
	if !ok {
		w.since[pod], start = now, now
	}
	return min(max(now.Sub(start)/5, firstDelay), lastDelay)
}

func (w *waiting) done(pod types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.since, pod)
}
