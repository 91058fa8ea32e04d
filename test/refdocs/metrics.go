package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"

	"istio-pod-network-controller/controllers"
)

// metric is one metric as the code declares it.
type metric struct {
	name, help, kind string
	labels           []string
}

// metricScan finds the metrics of one package:
//
//   - A metric's name is written as MetricPrefix + "name", or as MetricPrefix + name in a function that is called with a literal.
//   - Its help is the field Help beside it, or the text that follows it as an argument of a call.
//   - Its kind is that of the options around it (CounterOpts, ...), or that of the options in the function that is called with the name.
//   - Its labels are the []string literals and the keys of prometheus.Labels around it.
//
// A name without one of these is an error, so that no metric is missing from the page.
type metricScan struct {
	*source
	in    *sourcePackage
	found map[string]metric
	errs  []error
}

// metrics returns the product's metrics, sorted by name.
func (s *source) metrics() ([]metric, error) {
	found := map[string]metric{}
	var errs []error
	for _, p := range s.packages {
		scan := &metricScan{source: s, in: p, found: found}
		for _, file := range p.files {
			scan.file(file)
		}
		errs = append(errs, scan.errs...)
	}
	all := make([]metric, 0, len(found))
	for _, m := range found {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	if len(all) == 0 {
		errs = append(errs, errors.New("no metric found"))
	}
	return all, errors.Join(errs...)
}

// file walks a file and keeps what is above each node.
func (m *metricScan) file(file *ast.File) {
	var above []ast.Node
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil {
			above = above[:len(above)-1]
			return true
		}
		if sum, ok := n.(*ast.BinaryExpr); ok && isPrefix(sum.X) {
			m.name(sum, above)
		}
		above = append(above, n)
		return true
	})
}

func isPrefix(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == "MetricPrefix"
	case *ast.SelectorExpr:
		return e.Sel.Name == "MetricPrefix"
	}
	return false
}

// name handles one place where a metric is named.
func (m *metricScan) name(sum *ast.BinaryExpr, above []ast.Node) {
	if m.parameter(sum.Y, above) {
		return
	}
	name, ok := m.text(m.in, sum)
	if !ok || !strings.HasPrefix(name, controllers.MetricPrefix) {
		m.fault(sum, "write a metric's name as MetricPrefix + a literal")
		return
	}
	if constantDeclared(above) {
		m.fault(sum, "name metric "+name+" where it is made, beside its help")
		return
	}
	found := metric{name: name}
	for _, n := range slices.Backward(above) {
		if _, ok := n.(ast.Stmt); ok {
			break // what is above a statement says nothing about the metric
		}
		switch n := n.(type) {
		case *ast.CompositeLit:
			m.options(n, &found)
		case *ast.CallExpr:
			m.call(n, sum, &found)
		}
	}
	m.keep(found, sum)
}

// keep adds a metric of which all is known.
func (m *metricScan) keep(found metric, at ast.Node) {
	if found.help == "" || found.kind == "" {
		m.fault(at, fmt.Sprintf("metric %s: no help (%q) or no kind (%q) is found beside its name", found.name, found.help, found.kind))
		return
	}
	m.found[found.name] = found
}

// parameter handles MetricPrefix + name in a function that is given the name: the metrics are where the function is called. It reports
// whether name is a parameter.
func (m *metricScan) parameter(name ast.Expr, above []ast.Node) bool {
	ident, ok := name.(*ast.Ident)
	i := slices.IndexFunc(above, func(n ast.Node) bool { _, ok := n.(*ast.FuncDecl); return ok })
	if !ok || i < 0 {
		return false
	}
	f := above[i].(*ast.FuncDecl) //nolint:forcetypeassert // found as one
	position := slices.Index(parameters(f), ident.Name)
	if position < 0 {
		return false
	}
	for _, file := range m.in.files {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) <= position {
				return true
			}
			if called, ok := call.Fun.(*ast.Ident); !ok || called.Name != f.Name.Name {
				return true
			}
			text, ok := m.text(m.in, call.Args[position])
			if !ok {
				m.fault(call, "write the metric's name as a literal")
				return true
			}
			found := metric{name: controllers.MetricPrefix + text}
			m.call(call, call.Args[position], &found)
			m.keep(found, call)
			return true
		})
	}
	return true
}

// parameters returns the names of a function's parameters.
func parameters(f *ast.FuncDecl) []string {
	var names []string
	for _, field := range f.Type.Params.List {
		for _, name := range field.Names {
			names = append(names, name.Name)
		}
	}
	return names
}

func constantDeclared(above []ast.Node) bool {
	return slices.ContainsFunc(above, func(n ast.Node) bool {
		decl, ok := n.(*ast.GenDecl)
		return ok && decl.Tok == token.CONST
	})
}

func (m *metricScan) fault(at ast.Node, text string) {
	m.errs = append(m.errs, fmt.Errorf("%s: %s", m.at(at.Pos()), text))
}

// options reads a literal of options around the name.
func (m *metricScan) options(lit *ast.CompositeLit, found *metric) {
	if kind := kindOf(lit); kind != "" && found.kind == "" {
		found.kind = kind
	}
	for _, e := range lit.Elts {
		field, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		switch key, _ := field.Key.(*ast.Ident); {
		case key == nil:
		case key.Name == "Help" && found.help == "":
			found.help, _ = m.text(m.in, field.Value)
		case key.Name == "ConstLabels":
			m.labels(field.Value, found)
		}
	}
}

// kindOf returns the kind of a literal of options, or "".
func kindOf(lit *ast.CompositeLit) string {
	selector, ok := lit.Type.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	return map[string]string{"CounterOpts": "counter", "GaugeOpts": "gauge", "HistogramOpts": "histogram", "SummaryOpts": "summary"}[selector.Sel.Name]
}

// call reads the arguments of a call around the name, and the function that is called.
func (m *metricScan) call(call *ast.CallExpr, name ast.Expr, found *metric) {
	after := false
	for _, arg := range call.Args {
		if text, ok := m.text(m.in, arg); ok && after && found.help == "" {
			found.help = text
		}
		after = after || arg == name
		m.labels(arg, found)
	}
	if found.kind != "" {
		return
	}
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		if f.Sel.Name == "NewDesc" {
			found.kind = byName(found.name)
		}
	case *ast.Ident:
		m.helper(f.Name, found)
	}
}

// byName returns the kind of a metric whose kind is chosen when it is collected: by Prometheus' naming, only counters end in _total; by ours,
// only histograms end in _duration_seconds.
func byName(name string) string {
	switch {
	case strings.HasSuffix(name, "_total"):
		return "counter"
	case strings.HasSuffix(name, "_duration_seconds"):
		return "histogram"
	}
	return "gauge"
}

// helper looks into a function of the package that makes a metric of the name that it is given.
func (m *metricScan) helper(function string, found *metric) {
	for _, file := range m.in.files {
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Name.Name != function || f.Body == nil {
				continue
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CompositeLit:
					m.options(n, found)
				case *ast.CallExpr:
					m.made(n, found)
				}
				return true
			})
		}
	}
}

// made reads a call in such a function: NewDesc, or what takes options and labels.
func (m *metricScan) made(call *ast.CallExpr, found *metric) {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !strings.HasPrefix(f.Sel.Name, "New") {
		return
	}
	if f.Sel.Name == "NewDesc" && found.kind == "" {
		found.kind = byName(found.name)
	}
	for _, arg := range call.Args {
		m.labels(arg, found)
	}
}

// labels adds the names in a []string literal, or the keys of prometheus.Labels.
func (m *metricScan) labels(e ast.Expr, found *metric) {
	lit, ok := e.(*ast.CompositeLit)
	if !ok {
		return
	}
	_, list := lit.Type.(*ast.ArrayType)
	selector, isSelector := lit.Type.(*ast.SelectorExpr)
	if !list && (!isSelector || selector.Sel.Name != "Labels") {
		return
	}
	for _, element := range lit.Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok {
			element = pair.Key
		}
		if label, ok := m.text(m.in, element); ok && !slices.Contains(found.labels, label) {
			found.labels = append(found.labels, label)
		}
	}
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
