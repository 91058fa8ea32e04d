package scale

import (
	"strconv"
	"strings"
)

// metrics are the values of a program's metrics by name and labels.
type metrics map[string]float64

func parseMetrics(text string) metrics {
	m := metrics{}
	for line := range strings.Lines(text) {
		series, at := strings.TrimSpace(line), strings.LastIndex(strings.TrimSpace(line), " ")
		if at < 0 || series[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(series[at+1:], 64); err == nil {
			m[series[:at]] = v
		}
	}
	return m
}

// sum adds the series of a metric that have a label, written as `name="value"`; "" is all.
func (m metrics) sum(name, label string) (sum float64) {
	for series, value := range m {
		if (series == name || strings.HasPrefix(series, name+"{")) && strings.Contains(series, label) {
			sum += value
		}
	}
	return sum
}

// requests counts the requests that an agent has made, but for the time-outs of its watches' connections.
func (m metrics) requests() float64 { return m.sum("rest_client_requests_total", "") }

// writes counts the requests that change something.
func (m metrics) writes() float64 {
	return m.requests() - m.sum("rest_client_requests_total", `method="GET"`)
}
