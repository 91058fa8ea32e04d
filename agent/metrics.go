package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/runtime/nri"
)

// registerMetrics registers the metrics of hooks and readiness. All parts of the agent must have been made.
func registerMetrics(r prometheus.Registerer, core *coreHolder, ready *readiness, hooks []hook, others []prometheus.Collector) error {
	away := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: controllers.MetricPrefix + "api_server_away_seconds", Help: "Time since the first of the agent's attempts to reach the API server that failed, or that it refused; 0 while it answers.",
	}, func() float64 { return core.contact.Away().Seconds() })
	kept := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: controllers.MetricPrefix + "kept_objects_age_seconds", Help: "Age of the namespaces and profiles that were kept from before an outage of the API server, while the agent uses them; 0: it does not.",
	}, func() float64 {
		if at := core.kept.Since(); !at.IsZero() {
			return time.Since(at).Seconds()
		}
		return 0
	})
	collectors := slices.Concat(others, []prometheus.Collector{readyMetric{ready}, away, kept}, core.source.metrics())
	for _, h := range hooks {
		collectors = append(collectors, gaugeOf(controllers.MetricPrefix+"hook_up", "1 while the agent learns of sandboxes by this hook. Hooks that are switched off are missing.",
			prometheus.Labels{"hook": string(h.by)}, h.up))
	}
	if early := hooks[1:]; len(early) > 0 {
		collectors = append(collectors, gaugeOf(controllers.MetricPrefix+"early_hook", "1 while the runtime asks the agent before a pod's first container exists (by NRI or CNI), 0 while pods start before their "+
			"rules are there; missing if both are switched off.", nil, func() bool { return slices.ContainsFunc(early, func(h hook) bool { return h.up() }) }))
	}
	for _, c := range collectors {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// up reports whether the plugin is in the chain and its requests come to an agent of this node: during an update to this one or the other.
func (p *cniState) up() bool { return p.Check(context.Background()) == nil } //nolint:forbidigo // a metric's function has no ctx, and Check waits for nothing

// gaugeOf returns a gauge that is 1 while is returns true.
func gaugeOf(name, help string, labels prometheus.Labels, is func() bool) prometheus.Collector {
	number := map[bool]float64{true: 1}
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 { return number[is()] })
}

// readyMetric makes the readiness checks at each scrape, all at once.
type readyMetric struct{ ready *readiness }

// Describe sends the description of the one metric that Collect sends.
func (m readyMetric) Describe(ch chan<- *prometheus.Desc) { ch <- m.desc() }

// Collect sends 1 for each check that passes, and 0 for each that fails.
func (m readyMetric) Collect(ch chan<- prometheus.Metric) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, p := range m.ready.parts {
		wg.Go(func() {
			value := 0.0
			if p.bounded(context.Background()) == nil { //nolint:forbidigo // Collect has no ctx; the check has a time limit
				value = 1
			}
			ch <- prometheus.MustNewConstMetric(m.desc(), prometheus.GaugeValue, value, p.name)
		})
	}
}

func (readyMetric) desc() *prometheus.Desc {
	return prometheus.NewDesc(controllers.MetricPrefix+"ready", "1 for each part of the agent's readiness that passes, as /readyz reports it.", []string{"check"}, nil)
}

// failOpenMetric returns a counter of pods that an early hook let through.
func failOpenMetric(by controllers.Hook) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{
		Name: controllers.MetricPrefix + "fail_open_total", ConstLabels: prometheus.Labels{"hook": string(by)},
		Help: "Calls of the runtime in which a pod was let through without its rules, because --fail-open is set and they could not be applied in time.",
	})
}

// observeNRI returns a function that counts and measures the runtime's calls, and its metrics.
func observeNRI(failOpen bool) (func(call string, outcome nri.Outcome, took time.Duration), []prometheus.Collector) {
	calls, letThrough := nriCalls(), failOpenMetric(controllers.NRI)
	panics := prometheus.NewCounter(prometheus.CounterOpts{
		Name: controllers.MetricPrefix + "nri_panics_total", Help: "Panics of the agent while it answered a call of the container runtime. Each is a bug, and fails one call for one pod.",
	})
	return func(call string, outcome nri.Outcome, took time.Duration) {
		calls.WithLabelValues(call, string(outcome)).Observe(took.Seconds())
		if outcome == nri.Panicked {
			panics.Inc()
		}
		if failOpen && (outcome == nri.LetThrough || outcome == nri.Late || outcome == nri.Panicked) {
			letThrough.Inc()
		}
	}, []prometheus.Collector{calls, letThrough, panics}
}

// cniRequests returns a metric of the requests of the CNI plugin.
func cniRequests() *prometheus.HistogramVec {
	requests := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    controllers.MetricPrefix + "cni_call_duration_seconds",
		Help:    "Time for which a request of the CNI plugin was under way in the agent, by CNI command and result (passed, refused). The runtime waits for it.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18), // 0.1 ms to 13 s
	}, []string{"command", "result"})
	for _, command := range []string{cniAdd, cniCheck} {
		for _, result := range []string{cniPassed, cniRefused} {
			requests.WithLabelValues(command, result)
		}
	}
	return requests
}

// Values of the labels command and result.
const (
	cniAdd, cniCheck, cniDel = "ADD", "CHECK", "DEL"
	cniPassed, cniRefused    = "passed", "refused"
)
