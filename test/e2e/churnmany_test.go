package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// churn is how many pods come and go, unless E2E_CHURN says otherwise; churnAtOnce is how many there are at a time.
const (
	churn       = 20
	churnAtOnce = 20
)

// Pods come and go for months: nothing of one that is gone may stay, in the agent or on the node. A descriptor or a mount that the agent keeps would
// keep a deleted pod's namespace, and its addresses, alive.
//
// Not parallel: it counts all that the agent holds.
//
//e2e:rounds nftables nri
func TestChurnLeavesNothing(t *testing.T) {
	n := amount(t, "E2E_CHURN", churn)
	s := newQuietSpace(t, asked())
	agent := s.agent(t)
	defer s.deleteEarly(t)()
	s.comeAndGo(t, churnAtOnce, "warm") // what is made once, such as a metric's first series
	s.awaitTidyNode(t, agent)
	netns, before := s.openNamespaces(t, agent), s.held(t)

	for made := 0; made < n; made += churnAtOnce {
		s.comeAndGo(t, min(churnAtOnce, n-made), fmt.Sprint(made))
	}
	s.awaitTidyNode(t, agent)
	if now := s.openNamespaces(t, agent); now != netns {
		t.Errorf("the agent holds %d network namespaces open, before %d", now, netns)
	}
	eventually(t, "an agent that holds what it held before", func(ctx context.Context) error {
		now, err := s.readHeld(ctx)
		if err != nil {
			return err
		}
		return now.above(before)
	})
	after := s.held(t)
	t.Logf("%d pods came and went; before %+v, after %+v", n, before, after)
	s.wantUnhurt(t, agent)
}

// amount is what a variable of the environment says, or else a default.
func amount(t *testing.T, variable string, byDefault int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return byDefault
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// duration is amount for a time.
func duration(t *testing.T, variable string, byDefault time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return byDefault
	}
	d, err := time.ParseDuration(text)
	must(t, err)
	return d
}

// deleteEarly deletes pods whose names begin with "brief" when they have a sandbox, which is when the agent finds it: by force, or in order. It does so
// until end is called.
func (s *space) deleteEarly(t *testing.T) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		err := s.started(ctx, s.name, func(e startedEvent) {
			if e.sandbox && strings.HasPrefix(e.pod, "brief") {
				s.deleteWithin(ctx, t, e.pod, int64(e.pod[len(e.pod)-1]%2))
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
	return func() { cancel(); wg.Wait() }
}

// comeAndGo makes pods that are programmed, and deletes them. As many are deleted while they are programmed.
func (s *space) comeAndGo(t *testing.T, n int, name string) {
	t.Helper()
	for i := range n {
		s.create(t, newPod(fmt.Sprintf("churn-%s-%d", name, i), asked(), appContainer()))
		s.create(t, newPod(fmt.Sprintf("brief-%s-%d", name, i), asked(), appContainer()))
	}
	s.awaitAll(t, n, hasStatus(statusInitialized))
	now := int64(0)
	must(t, s.pods().DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}))
	s.awaitAll(t, 0, func(*corev1.Pod) error { return nil })
}

// held is what the agent holds, as it counts itself.
type held struct{ pods, goroutines, files, series, heapMiB float64 }

func (s *space) held(t *testing.T) held {
	t.Helper()
	h, err := s.readHeld(t.Context())
	must(t, err)
	return h
}

func (s *space) readHeld(ctx context.Context) (held, error) {
	m, err := s.readMetrics(ctx)
	if err != nil {
		return held{}, err
	}
	series, err := countSeries(ctx, "http://"+s.node.ip()+":15079/metrics")
	return held{
		pods: m.sum(metricPrefix + "pods"), goroutines: m.sum("go_goroutines"), files: m.sum("process_open_fds"),
		series: series, heapMiB: m.sum("go_memstats_heap_inuse_bytes") / (1 << 20),
	}, err
}

// above is nil for no more than before, but for what comes and goes by itself: a connection with its goroutines, a watch that is
// renewed, a garbage collection that is due.
func (h held) above(before held) error {
	var errs []error
	for name, v := range map[string][3]float64{
		"pods": {h.pods, before.pods, 0}, "goroutines": {h.goroutines, before.goroutines, 10},
		"descriptors": {h.files, before.files, 4}, "series": {h.series, before.series, 20}, "MiB of heap": {h.heapMiB, before.heapMiB, 24},
	} {
		if v[0] > v[1]+v[2] {
			errs = append(errs, fmt.Errorf("%v %s, before %v", v[0], name, v[1]))
		}
	}
	return errors.Join(errs...)
}

// countSeries counts the lines of a page of metrics that are not comments.
func countSeries(ctx context.Context, url string) (n float64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "#") {
			n++
		}
	}
	return n, lines.Err()
}
