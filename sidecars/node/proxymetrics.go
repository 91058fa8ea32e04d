package node

import (
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
	proxyStarts = prometheus.NewDesc(controllers.MetricPrefix+"managed_proxy_start_duration_seconds", "Time from when the rules of a sandbox without a proxy are in force until its first proxy is ready.", []string{"profile"}, nil)
)

// proxyMetrics shows the node's own proxies of pods. A profile has series while pods of the node have chosen it, and all of them from the start,
// as in sharedMetrics.
type proxyMetrics struct {
	figures func() map[string]sidecars.Figures
}

// Describe sends the descriptions of what Collect sends.
func (proxyMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{managedProxies, rolloutPaused, proxyRestarts, proxyUpgrades, proxyStarts} {
		ch <- d
	}
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
		ch <- histogramOf(proxyStarts, f.Starts, profile)
	}
}

// histogramOf returns times of a profile as a histogram.
func histogramOf(d *prometheus.Desc, of sidecars.Durations, profile string) prometheus.Metric {
	within := map[float64]uint64{}
	for bound, n := range of.Within {
		within[bound.Seconds()] = n
	}
	return prometheus.MustNewConstHistogram(d, of.Count, of.Sum.Seconds(), within, profile)
}
