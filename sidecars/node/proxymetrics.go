package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/sidecars"
)

var (
	managedProxies = prometheus.NewDesc(controllers.MetricPrefix+"managed_proxies", "Pods of this node with a proxy of their own, by profile and state: ready, starting, silent (it runs and no longer answers), "+
		"failed (none is ready since the last one ended or could not be started), refused (the pod cannot have one of this profile), or ended.", []string{"profile", "state"}, nil)
	rolloutPaused = prometheus.NewDesc(controllers.MetricPrefix+"managed_proxy_rollout_paused", "1 while the node upgrades no more proxies of a profile after a failure, 0 otherwise.", []string{"profile"}, nil)
	proxyRestarts = prometheus.NewDesc(controllers.MetricPrefix+"managed_proxy_restarts_total", "Proxies of pods' own that ended without being told to, or hung (liveness). Each is replaced.", []string{"profile"}, nil)
	proxyUpgrades = prometheus.NewDesc(controllers.MetricPrefix+"managed_proxy_upgrades_total", "Upgrades of pods' own proxies to another version of their profile, by result: succeeded, or failed (the new proxy did not become "+
		"ready, and the old one serves on; it is tried again).", []string{"profile", "result"}, nil)
)

// proxyMetrics shows the node's own proxies of pods. A profile has series while pods of the node have chosen it, and all of them from the start,
// as in sharedMetrics.
type proxyMetrics struct {
	figures func() map[string]sidecars.Figures
	starts  *prometheus.HistogramVec
}

func newProxyMetrics(figures func() map[string]sidecars.Figures) proxyMetrics {
	return proxyMetrics{figures, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: controllers.MetricPrefix + "managed_proxy_start_duration_seconds", Help: "Time from when the rules of a sandbox without a proxy are in force until its first proxy is ready.",
		Buckets: prometheus.ExponentialBuckets(0.125, 4, 6), // to 128 s
	}, []string{"profile"})}
}

// Describe sends the descriptions of what Collect sends.
func (m proxyMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{managedProxies, rolloutPaused, proxyRestarts, proxyUpgrades} {
		ch <- d
	}
	m.starts.Describe(ch)
}

// Collect sends the series of each profile.
func (m proxyMetrics) Collect(ch chan<- prometheus.Metric) {
	for profile, f := range m.figures() {
		for health, n := range f.Pods {
			ch <- prometheus.MustNewConstMetric(managedProxies, prometheus.GaugeValue, float64(n), profile, string(health))
		}
		ch <- prometheus.MustNewConstMetric(rolloutPaused, prometheus.GaugeValue, oneIf(f.Paused), profile)
		ch <- prometheus.MustNewConstMetric(proxyRestarts, prometheus.CounterValue, float64(f.Restarts), profile)
		ch <- prometheus.MustNewConstMetric(proxyUpgrades, prometheus.CounterValue, float64(f.Upgraded), profile, "succeeded")
		ch <- prometheus.MustNewConstMetric(proxyUpgrades, prometheus.CounterValue, float64(f.Failed), profile, "failed")
		ch <- m.starts.WithLabelValues(profile).(prometheus.Histogram)
	}
}

func observing(of *prometheus.HistogramVec) func(profile string, took time.Duration) {
	return func(profile string, took time.Duration) { of.WithLabelValues(profile).Observe(took.Seconds()) }
}
