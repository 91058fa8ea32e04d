package controllers

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"istio-pod-network-controller/iptables"
)

// MetricPrefix starts the name of each of our metrics.
const MetricPrefix = "istio_pod_network_controller_"

// Metrics count the calls of Ensure by result, and measure their duration. Every series exists from the start, with 0: rate() does not see
// the first value of a series as an increase.
type Metrics struct {
	ensures   *prometheus.CounterVec
	durations *prometheus.HistogramVec
	drift     *prometheus.CounterVec
	failures  *prometheus.CounterVec
}

// NewMetrics registers the metrics, and a gauge of the ledger's entries by state.
func NewMetrics(r prometheus.Registerer, ledger *Ledger) (*Metrics, error) {
	m := &Metrics{
		ensures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: MetricPrefix + "ensure_total", Help: "Calls that made a sandbox's rules what its pod asks for, by hook and result.",
		}, []string{"hook", "result"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: MetricPrefix + "ensure_duration_seconds", Help: "Time to look at a sandbox and program it.",
			Buckets: prometheus.ExponentialBuckets(0.0002, 2, 15), // 0.2 ms to 3.3 s
		}, []string{"hook"}),
		drift: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: MetricPrefix + "drift_total", Help: "Repairs of rules that somebody else had changed, by what differed; a repair counts once for each kind.",
		}, []string{"kind"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: MetricPrefix + "failures_total", Help: "Calls that failed, by reason: annotation (the pod's owner has to correct it), api (pod or namespace could not be read), runtime (it did " +
				"not say where the sandbox is), timeout (time, memory or descriptors ran out), changed (somebody changed the rules, and they could not be repaired), or kernel (it refused).",
		}, []string{"reason"}),
	}
	m.startAtZero()
	collectors := []prometheus.Collector{
		m.ensures, m.durations, m.drift, m.failures,
		countPods(MetricPrefix+"contended_pods", "Pods whose rules somebody keeps changing.", nil, ledger, func(e Entry) bool { return e.contention.contended() }),
		countPods(MetricPrefix+"held_pods", "Pods whose new connections wait for a proxy that does not listen.", nil, ledger, func(e Entry) bool { return e.hold.waits() }),
		countPods(MetricPrefix+"late_pods", "Pods whose first container was started before their rules were in force.", nil, ledger, func(e Entry) bool { return e.late > 0 }),
		countPods(MetricPrefix+"no_listener_pods", "Pods with rules in which nobody listens on the proxy's ports.", nil, ledger, func(e Entry) bool { return e.Unheard != "" }),
		countPods(MetricPrefix+"preempted_pods", "Pods in which rules of another program decide before ours.", nil, ledger, func(e Entry) bool { return e.Preempted != "" }),
	}
	for _, state := range []State{Programmed, Removed, FailedPod, InvalidPod, ByOthers} {
		collectors = append(collectors, countPods(MetricPrefix+"pods", "Pods of this node that the agent has to do with, by state: programmed, removed, failed, invalid (failed, and the pod's owner has to correct it), or others (another project redirects them).",
			prometheus.Labels{"state": string(state)}, ledger, func(e Entry) bool { return e.State == state }))
	}
	for _, c := range collectors {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// startAtZero makes every series.
func (m *Metrics) startAtZero() {
	for _, by := range []Hook{Watch, Verify, NRI, CNI} {
		m.durations.WithLabelValues(string(by))
		for _, result := range []Result{Changed, Unchanged, Skipped, Failed} {
			m.ensures.WithLabelValues(string(by), string(result))
		}
	}
	for _, kind := range iptables.Kinds() {
		m.drift.WithLabelValues(string(kind))
	}
	for _, reason := range failureReasons() {
		m.failures.WithLabelValues(string(reason))
	}
}

// ensured counts one call of Ensure. A call whose sandbox is not there yet is not counted.
func (m *Metrics) ensured(by Hook, result Result, err error, d time.Duration) {
	if absent(err) {
		return
	}
	m.ensures.WithLabelValues(string(by), string(result)).Inc()
	m.durations.WithLabelValues(string(by)).Observe(d.Seconds())
	if result == Failed {
		m.failures.WithLabelValues(string(reasonOf(err))).Inc()
	}
}

// repaired counts a repair.
func (m *Metrics) repaired(kinds []iptables.Kind) {
	for _, kind := range kinds {
		m.drift.WithLabelValues(string(kind)).Inc()
	}
}

// countPods counts the ledger's entries of a sort at each scrape.
func countPods(name, help string, labels prometheus.Labels, ledger *Ledger, counts func(Entry) bool) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 {
		n := 0
		for _, e := range ledger.Entries() {
			if counts(e) {
				n++
			}
		}
		return float64(n)
	})
}
