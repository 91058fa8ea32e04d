package template

import (
	"errors"
	"strings"
	"testing"
	"text/template"
)

type pod struct {
	meta
	NetNS string
}

type meta struct {
	Name, Namespace string
	IPs             []string
	Labels          map[string]string
}

type node struct {
	Pods    []pod
	Node    string
	Version string
	Network struct{ InboundPort, OutboundPort int32 }
	Names   func() ([]string, error)
	secret  string
}

// nodeOfPods returns the data of both engines in these tests.
func nodeOfPods() node {
	n := node{Node: "n1", Version: "7", Names: func() ([]string, error) { return []string{"x", "y"}, nil }, secret: "s", Pods: []pod{
		{meta{Name: "a", IPs: []string{"10.0.0.1", "fd00::1"}, Labels: map[string]string{"app": "cart", "a": "", "z": "last"}}, "cni-1"},
		{meta{Name: "b", Namespace: "shop"}, "cni-2"},
	}}
	n.Network.InboundPort, n.Network.OutboundPort = 15006, 15001
	return n
}

// data is one value for both engines: a function in it is printed by its address.
var data = nodeOfPods()

func rendered(text string, data any) (string, error) {
	t, err := Parse("f", text)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	err = t.Execute(&out, data)
	return out.String(), err
}

func renderedByGo(text string) (string, error) {
	t, err := template.New("f").Option("missingkey=zero").Parse(text)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	err = t.Execute(&out, data)
	return strings.ReplaceAll(out.String(), "<no value>", "<nil>"), err // callers print nothing for either
}

var templates = []string{
	`{{ .Node }} {{- .Version }} {{ 7 }} {{ true }} {{ "x" }} {{ 'a' }}`,
	`{{ range .Pods }}{{ .Name }}/{{ .Namespace }} {{ .NetNS }} {{ end }}`,
	`{{ range $i, $p := .Pods }}{{ $i }}{{ $p.Name }}{{ range $k, $v := $p.Labels }}{{ $k }}={{ $v }};{{ else }}none{{ end }}{{ end }}`,
	`{{ range $p := .Pods }}{{ if eq $p.Name "a" }}{{ continue }}{{ end }}{{ $p.Name }}{{ break }}{{ end }}{{ range 3 }}{{ . }}{{ end }}{{ range $i := 2 }}{{ $i }}{{ end }}`,
	`{{ $x := "a" }}{{ if true }}{{ $x = "b" }}{{ $x := "c" }}{{ $x }}{{ end }}{{ $x }}{{ range .Pods }}{{ $x = .Name }}{{ end }}{{ $x }}`,
	`{{ with (index .Pods 0).Labels }}{{ .app }}{{ .none }}{{ index . "z" }}{{ $.Node }}{{ else }}x{{ end }}{{ with "" }}x{{ else with "y" }}{{ . }}{{ end }}`,
	`{{ if and .Pods (gt (len .Pods) 1) }}1{{ end }}{{ if or "" 0 }}x{{ else if not false }}2{{ end }}{{ and 1 0 2 }}{{ or 0 "" "z" }}{{ or 0 }}`,
	`{{ eq 1 2 1 }}{{ ne "a" "b" }}{{ lt 1 2 }}{{ le 2 2 }}{{ gt "b" "a" }}{{ ge 1 2 }}{{ eq true true }}{{ eq .Network.InboundPort 15006 }}`,
	`{{ printf "%s-%d %q %05d" .Node 7 .Version .Network.OutboundPort }}{{ print 1 2 "a" "b" 3 }}{{ println .Node 1 }}{{ .Node | printf "%s:%s" "n" }}`,
	`{{ slice .Node 1 }}{{ slice .Node 0 1 }}{{ slice .Node }}{{ len (slice (index .Pods 0).IPs 1) }}{{ index .Node 1 }}{{ index .Pods 1 | len }}`,
	`{{ define "t" }}[{{ . }}{{ $ }}]{{ end }}{{ template "t" .Node }}{{ block "b" .Network }}{{ .InboundPort }}{{ end }}{{ template "none" }}`,
	`{{ define "t" }}{{ if . }}{{ template "t" (slice . 1) }}{{ end }}{{ len . }}{{ end }}{{ template "t" "abc" }}`,
	`{{ range .Pods }}{{ .Missing }}{{ end }}`, `{{ .Node.Name }}`, `{{ .secret }}`, `{{ index .Pods 2 }}`, `{{ index .Pods "a" }}`, `{{ slice .Node 2 1 }}`, `{{ eq 1 "a" }}`,
	`{{ lt true false }}`, `{{ len 3 }}`, `{{ "a" "b" }}`, `{{ .Node 1 }}`, `{{ range $a, $b := 3 }}{{ end }}`, `{{ range .Node }}{{ end }}`, `{{ not }}`, `{{ nil }}`, `{{ 0x1e }}{{ 1_000 }}{{ +3 }}{{ -0 }}`, `{{ $x = $x }}`, `{{ $x = 1 }}`, `{{ range $x = .Pods }}{{ end }}`, `{{ range -1 }}x{{ else }}y{{ end }}`,
	`{{ $x := 1 }}{{ with $x = 2 }}{{ $x }}{{ end }}{{ $x }}{{/* no */}}{{ (.Node) }}{{ ((index .Pods 0).Labels).app }}`,
}

// What a template gives is what text/template makes of it, and what that refuses is refused.
func TestExecute_templates_asGoDoes(t *testing.T) {
	for _, text := range templates {
		want, errWant := renderedByGo(text)
		if got, err := rendered(text, data); (err == nil) != (errWant == nil) || err == nil && got != want {
			t.Errorf("%s\ngot  %q, %v\nwant %q, %v", text, got, err, want, errWant)
		}
	}
}

func TestExecute_endless_isRefused(t *testing.T) {
	for text, want := range map[string]error{
		`{{ range 3000 }}{{ range 3000 }}{{ end }}{{ end }}`:                      errTooLong,
		`{{ range 100000000000 }}{{ end }}`:                                       errTooLong,
		`{{ range 10000 }}{{ range 10000 }}{{ if 1 }}{{ end }}{{ end }}{{ end }}`: errTooLong,
		`{{ define "t" }}{{ template "t" }}{{ end }}{{ template "t" }}`:           errTooDeep,
	} {
		if _, err := rendered(text, data); !errors.Is(err, want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestExecute_functionInAField_isCalled(t *testing.T) {
	if got, err := rendered(`{{ range .Names }}{{ . }}{{ end }}{{ len .Names }}`, data); got != "xy2" || err != nil {
		t.Errorf("got %q, error %v", got, err)
	}
	bad := errors.New("no names")
	none := node{Names: func() ([]string, error) { return nil, bad }}
	if _, err := rendered("a\n{{ range .Names }}{{ end }}", none); !errors.Is(err, bad) || !strings.Contains(err.Error(), "f:2:") {
		t.Errorf("error %v", err)
	}
}

func FuzzExecuteAsGoDoes(f *testing.F) {
	for _, text := range templates {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := rendered(text, data)
		if err != nil || strings.Contains(text, "printf") || strings.Contains(text, "Names") { // a format may ask for types, and Go calls no field
			return
		}
		if want, err := renderedByGo(text); err != nil || got != want {
			t.Errorf("%s\ngot  %q\nwant %q, %v", text, got, want, err)
		}
	})
}
