package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/sidecars/shared"
)

var (
	sharedPods = prometheus.NewDesc(controllers.MetricPrefix+"shared_proxy_pods", "Pods of this node that have chosen a shared profile, by profile and state: served, refused (the pod or the profile has to be "+
		"changed first), or waiting (for the proxy, or for its next configuration).", []string{"profile", "state"}, nil)
	sharedUp     = prometheus.NewDesc(controllers.MetricPrefix+"shared_proxy_up", "1 while the node's proxy of a shared profile runs, 0 while it does not, and connections of its pods are refused.", []string{"profile"}, nil)
	sharedNewest = prometheus.NewDesc(controllers.MetricPrefix+"shared_proxy_newest", "1 while the node's proxy of a shared profile answers that it has the profile's present version, without pods that have left; "+
		"0 while it has an older one, or does not answer.", []string{"profile"}, nil)
	sharedReloads = prometheus.NewDesc(controllers.MetricPrefix+"shared_proxy_reloads_total", "New configurations of a shared proxy, by profile and result: applied (the proxy has confirmed it), refused (the templates or the "+
		"proxy's check did not pass it with all pods; what became of the rest counts as well), unconfirmed (the proxy did not answer its version in time, and the old one came back), or failed (it could "+
		"not be written, or the runtime did not pass the check or the signal on).", []string{"profile", "result"}, nil)
)

// sharedMetrics shows the shared proxies of the node. A profile has series while it has pods on the node or its proxy runs there, and all of
// them from the start: rate() does not see the first value of a series as an increase.
type sharedMetrics struct {
	figures func() map[string]shared.Figures
	changes *prometheus.HistogramVec
}

func newSharedMetrics(figures func() map[string]shared.Figures) sharedMetrics {
	return sharedMetrics{figures, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: controllers.MetricPrefix + "shared_proxy_change_duration_seconds", Help: "Time from when the agent learns that a pod has chosen a shared profile, or has changed, until the proxy has " +
			"confirmed a configuration with that. Changes that are refused first are left out.",
		Buckets: prometheus.ExponentialBuckets(0.1, 2, 11), // to 102 s
	}, []string{"profile"})}
}

// Describe sends the descriptions of what Collect sends.
func (m sharedMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{sharedPods, sharedUp, sharedNewest, sharedReloads} {
		ch <- d
	}
	m.changes.Describe(ch)
}

// Collect sends the series of each profile.
func (m sharedMetrics) Collect(ch chan<- prometheus.Metric) {
	for profile, f := range m.figures() {
		for state, n := range map[string]int{"served": f.Served, "refused": f.Refused, "waiting": f.Waiting} {
			ch <- prometheus.MustNewConstMetric(sharedPods, prometheus.GaugeValue, float64(n), profile, state)
		}
		ch <- prometheus.MustNewConstMetric(sharedUp, prometheus.GaugeValue, oneIf(f.Running), profile)
		ch <- prometheus.MustNewConstMetric(sharedNewest, prometheus.GaugeValue, oneIf(f.Newest), profile)
		for result, n := range f.Reloads {
			ch <- prometheus.MustNewConstMetric(sharedReloads, prometheus.CounterValue, float64(n), profile, string(result))
		}
		ch <- m.changes.WithLabelValues(profile).(prometheus.Histogram)
	}
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
