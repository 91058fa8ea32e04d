// Package stats has counters and gauges by Envoy's names.
package stats

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Stats are made when they are first used.
type Stats struct {
	mu     sync.Mutex
	values map[string]*Value
}

// Value is a counter or a gauge.
type Value struct {
	atomic.Int64
	gauge bool
}

// New has none.
func New() *Stats { return &Stats{values: map[string]*Value{}} }

// Counter returns a counter.
func (s *Stats) Counter(name string) *Value { return s.get(name, false) }

// Gauge returns a gauge.
func (s *Stats) Gauge(name string) *Value { return s.get(name, true) }

func (s *Stats) get(name string, gauge bool) *Value {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.values[name]
	if !ok {
		v = &Value{gauge: gauge}
		s.values[name] = v
	}
	return v
}

// Write lists the values whose names match, a line each.
func (s *Stats) Write(w io.Writer, filter *regexp.Regexp) {
	for _, name := range s.names() {
		if filter == nil || filter.MatchString(name) {
			fmt.Fprintf(w, "%s: %d\n", name, s.get(name, false).Load())
		}
	}
}

// other are the characters that a metric's name cannot have.
var other = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// WritePrometheus lists all values as Prometheus reads them. What a name has in braces are labels.
func (s *Stats) WritePrometheus(w io.Writer) {
	typed := ""
	for _, name := range s.names() {
		base, labels, _ := strings.Cut(name, "{")
		metric := other.ReplaceAllString(base, "_")
		if !strings.HasPrefix(metric, "istio_") {
			metric = "envoy_" + metric
		}
		if labels != "" {
			labels = "{" + labels
		}
		v := s.get(name, false)
		kind := "counter"
		if v.gauge {
			kind = "gauge"
		}
		if metric != typed {
			fmt.Fprintf(w, "# TYPE %s %s\n", metric, kind)
			typed = metric
		}
		fmt.Fprintf(w, "%s%s %d\n", metric, labels, v.Load())
	}
}

func (s *Stats) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.values))
}
