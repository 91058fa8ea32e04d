package main

import (
	"strconv"
	"strings"
)

// prefix starts the names of the agent's own metrics.
const prefix = "istio_pod_network_controller_"

// metrics are the values of a program's metrics by name and labels.
type metrics map[string]float64

func parseMetrics(text string) metrics {
	m := metrics{}
	for line := range strings.Lines(text) {
		series, value, ok := cutLast(strings.TrimSpace(line), " ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			m[series] = v
		}
	}
	return m
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// sum adds the series of a metric that have all of the labels, each written as `name="value"`.
func (m metrics) sum(name string, labels ...string) (sum float64) {
	for series, value := range m {
		if series != name && !strings.HasPrefix(series, name+"{") {
			continue
		}
		all := true
		for _, label := range labels {
			all = all && strings.Contains(series, label)
		}
		if all {
			sum += value
		}
	}
	return sum
}

// requests counts the requests that an agent has made, but for the time-outs of its watches' connections.
func (m metrics) requests() float64 { return m.sum("rest_client_requests_total") }

// writes counts the requests that change something.
func (m metrics) writes() (sum float64) {
	for _, method := range []string{"PATCH", "POST", "PUT", "DELETE"} {
		sum += m.sum("rest_client_requests_total", `method="`+method+`"`)
	}
	return sum
}
