package main

import (
	"errors"
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strings"

	"istio-pod-network-controller/controllers"
)

// metric is one metric as the code declares it.
type metric struct {
	name, help, kind string
	labels           []string
}

// metrics returns the product's metrics, sorted by name. A metric is where its name is written as MetricPrefix + "name". Its help and its
// labels are beside the name; a name without help is an error, so that no metric is missing from the page.
func (s *source) metrics() ([]metric, error) {
	found := map[string]metric{}
	errs := []error{}
	for _, p := range s.packages {
		for _, file := range p.files {
			var above []ast.Node // what is around the node
			ast.Inspect(file, func(n ast.Node) bool {
				if n == nil {
					above = above[:len(above)-1]
					return true
				}
				if sum, ok := n.(*ast.BinaryExpr); ok && isPrefix(sum.X) {
					m, err := s.metricAt(p, sum, above)
					found[m.name] = m
					errs = append(errs, err)
				}
				above = append(above, n)
				return true
			})
		}
	}
	if len(found) == 0 {
		errs = append(errs, errors.New("no metric found"))
	}
	all := slices.SortedFunc(maps.Values(found), func(a, b metric) int { return strings.Compare(a.name, b.name) })
	return all, errors.Join(errs...)
}

func isPrefix(e ast.Expr) bool {
	if selector, ok := e.(*ast.SelectorExpr); ok {
		e = selector.Sel
	}
	name, ok := e.(*ast.Ident)
	return ok && name.Name == "MetricPrefix"
}

// metricAt returns the metric that is named at a place: its help is the field Help beside the name, or the text that follows the name as
// an argument. Its labels are the []string literals and the keys of prometheus.Labels in the calls and options around it.
func (s *source) metricAt(p *sourcePackage, name *ast.BinaryExpr, above []ast.Node) (metric, error) {
	text, ok := s.text(p, name)
	if !ok {
		return metric{}, fmt.Errorf("%s: write a metric's name as MetricPrefix + a literal", s.at(name.Pos()))
	}
	m := metric{name: text, kind: kindOf(text)}
	for _, n := range slices.Backward(above) {
		if _, statement := n.(ast.Stmt); statement {
			break // what is above a statement says nothing about the metric
		}
		switch n := n.(type) {
		case *ast.CompositeLit:
			s.options(p, n, &m)
		case *ast.CallExpr:
			for _, arg := range n.Args {
				if help, ok := s.text(p, arg); ok && arg.Pos() > name.Pos() && m.help == "" {
					m.help = help
				}
				m.labels = append(m.labels, s.labels(p, arg)...)
			}
		}
	}
	if m.help == "" {
		return m, fmt.Errorf("%s: metric %s has no help: write it beside the name, where the metric is made", s.at(name.Pos()), text)
	}
	return m, nil
}

// options reads a literal of options around a metric's name.
func (s *source) options(p *sourcePackage, lit *ast.CompositeLit, m *metric) {
	for _, e := range lit.Elts {
		field, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		switch key, _ := field.Key.(*ast.Ident); {
		case key == nil:
		case key.Name == "Help" && m.help == "":
			m.help, _ = s.text(p, field.Value)
		case key.Name == "ConstLabels":
			m.labels = append(m.labels, s.labels(p, field.Value)...)
		}
	}
}

// kindOf returns the kind of a metric: by Prometheus' naming, only counters end in _total; by ours, only histograms end in
// _duration_seconds.
func kindOf(name string) string {
	switch {
	case strings.HasSuffix(name, "_total"):
		return "counter"
	case strings.HasSuffix(name, "_duration_seconds"):
		return "histogram"
	}
	return "gauge"
}

// labels returns the names in a []string literal, or the keys of prometheus.Labels.
func (s *source) labels(p *sourcePackage, e ast.Expr) (names []string) {
	lit, ok := e.(*ast.CompositeLit)
	if !ok {
		return nil
	}
	_, list := lit.Type.(*ast.ArrayType)
	selector, isSelector := lit.Type.(*ast.SelectorExpr)
	if !list && (!isSelector || selector.Sel.Name != "Labels") {
		return nil
	}
	for _, element := range lit.Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok {
			element = pair.Key
		}
		if label, ok := s.text(p, element); ok {
			names = append(names, label)
		}
	}
	return names
}

func metricsPage(all []metric) string {
	p := newPage("Metrics", "the code that registers them")
	p.text("What the agent serves for Prometheus at `--metrics-addr` (port 15079), besides Go's own `go_*` and `process_*` and controller-runtime's\n" +
		"`controller_runtime_*`, `workqueue_*` and `rest_client_*`. No label has a pod's name. [support-policy.md](../support-policy.md) says what may change.")
	p.block("curl -s http://NODE:15079/metrics | grep " + controllers.MetricPrefix)
	rows := make([][]string, len(all))
	for i, m := range all {
		labels := make([]string, len(m.labels))
		for j, l := range m.labels {
			labels[j] = code(l)
		}
		rows[i] = []string{code(m.name), m.kind, strings.Join(labels, ", "), m.help}
	}
	p.table([]string{"Name", "Kind", "Labels", "Meaning"}, rows)
	return p.String()
}
