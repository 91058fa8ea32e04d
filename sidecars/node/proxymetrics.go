package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/shared"
)

var (
	managedProxies = prometheus.NewDesc(controllers.MetricPrefix+"managed_proxies", "Pods of this node with a proxy of their own, by profile and state: ready, starting, silent (it runs and no longer answers), "+
		"failed (none is ready since the last one ended or could not be started), refused (the pod cannot have one of this profile), or ended.", []string{"profile", "state"}, nil)
	rolloutPaused = prometheus.NewDesc(controllers.MetricPrefix+"managed_proxy_rollout_paused", "1 while the node upgrades no more proxies of a profile after a failure, 0 otherwise.", []string{"profile"}, nil)
	proxyRestarts = prometheus.NewDesc(controllers.MetricPrefix+"managed_proxy_restarts_total", "Proxies of pods' own that ended without being told to, or hung (liveness). Each is replaced.", []string{"profile"}, nil)
	proxyUpgrades = prometheus.NewDesc(controllers.MetricPrefix+"managed_proxy_upgrades_total", "Upgrades of pods' own proxies to another version of their profile, by result: succeeded, or failed (the new proxy did not become "+
		"ready, and the old one serves on; it is tried again).", []string{"profile", "result"}, nil)

	sharedPods = prometheus.NewDesc(controllers.MetricPrefix+"shared_proxy_pods", "Pods of this node that have chosen a shared profile, by profile and state: served, refused (the pod or the profile has to be "+
		"changed first), or waiting (for the proxy, or for its next configuration).", []string{"profile", "state"}, nil)
	sharedUp     = prometheus.NewDesc(controllers.MetricPrefix+"shared_proxy_up", "1 while the node's proxy of a shared profile runs, 0 while it does not, and connections of its pods are refused.", []string{"profile"}, nil)
	sharedNewest = prometheus.NewDesc(controllers.MetricPrefix+"shared_proxy_newest", "1 while the node's proxy of a shared profile answers that it has the profile's present version, without pods that have left; "+
		"0 while it has an older one, or does not answer.", []string{"profile"}, nil)
	sharedReloads = prometheus.NewDesc(controllers.MetricPrefix+"shared_proxy_reloads_total", "New configurations of a shared proxy, by profile and result: applied (the proxy has confirmed it), refused (the templates or the "+
		"proxy's check did not pass it with all pods; what became of the rest counts as well), unconfirmed (the proxy did not answer its version in time, and the old one came back), or failed (it could "+
		"not be written, or the runtime did not pass the check or the signal on).", []string{"profile", "result"}, nil)
)

// profileMetrics shows the pods' own proxies, or the shared ones. A profile has series while pods of the node have chosen it or its shared proxy runs
// there, and all of them from the start: rate() does not see the first value of a series as an increase.
type profileMetrics struct {
	described []*prometheus.Desc
	durations *prometheus.HistogramVec // of starts, or of changes
	collect   func(ch chan<- prometheus.Metric)
}

// Describe sends the descriptions of what Collect sends.
func (m profileMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.described {
		ch <- d
	}
	m.durations.Describe(ch)
}

// Collect sends the series of each profile.
func (m profileMetrics) Collect(ch chan<- prometheus.Metric) { m.collect(ch) }

func (m profileMetrics) observe(profile string, took time.Duration) {
	m.durations.WithLabelValues(profile).Observe(took.Seconds())
}

func newProxyMetrics(figures func() map[string]sidecars.Figures) profileMetrics {
	starts := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: controllers.MetricPrefix + "managed_proxy_start_duration_seconds", Help: "Time from when the rules of a sandbox without a proxy are in force until its first proxy is ready.",
		Buckets: prometheus.ExponentialBuckets(0.125, 4, 6), // to 128 s
	}, []string{"profile"})
	return profileMetrics{[]*prometheus.Desc{managedProxies, rolloutPaused, proxyRestarts, proxyUpgrades}, starts, func(ch chan<- prometheus.Metric) {
		for profile, f := range figures() {
			for health, n := range f.Pods {
				ch <- prometheus.MustNewConstMetric(managedProxies, prometheus.GaugeValue, float64(n), profile, string(health))
			}
			ch <- prometheus.MustNewConstMetric(rolloutPaused, prometheus.GaugeValue, oneIf(f.Paused), profile)
			ch <- prometheus.MustNewConstMetric(proxyRestarts, prometheus.CounterValue, float64(f.Restarts), profile)
			ch <- prometheus.MustNewConstMetric(proxyUpgrades, prometheus.CounterValue, float64(f.Upgraded), profile, "succeeded")
			ch <- prometheus.MustNewConstMetric(proxyUpgrades, prometheus.CounterValue, float64(f.Failed), profile, "failed")
			ch <- starts.WithLabelValues(profile).(prometheus.Histogram)
		}
	}}
}

func newSharedMetrics(figures func() map[string]shared.Figures) profileMetrics {
	changes := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: controllers.MetricPrefix + "shared_proxy_change_duration_seconds", Help: "Time from when the agent learns that a pod has chosen a shared profile, or has changed, until the proxy has " +
			"confirmed a configuration with that. Changes that are refused first are left out.",
		Buckets: prometheus.ExponentialBuckets(0.1, 2, 11), // to 102 s
	}, []string{"profile"})
	return profileMetrics{[]*prometheus.Desc{sharedPods, sharedUp, sharedNewest, sharedReloads}, changes, func(ch chan<- prometheus.Metric) {
		for profile, f := range figures() {
			for state, n := range map[string]int{"served": f.Served, "refused": f.Refused, "waiting": f.Waiting} {
				ch <- prometheus.MustNewConstMetric(sharedPods, prometheus.GaugeValue, float64(n), profile, state)
			}
			ch <- prometheus.MustNewConstMetric(sharedUp, prometheus.GaugeValue, oneIf(f.Running), profile)
			ch <- prometheus.MustNewConstMetric(sharedNewest, prometheus.GaugeValue, oneIf(f.Newest), profile)
			for result, n := range f.Reloads {
				ch <- prometheus.MustNewConstMetric(sharedReloads, prometheus.CounterValue, float64(n), profile, string(result))
			}
			ch <- changes.WithLabelValues(profile).(prometheus.Histogram)
		}
	}}
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
