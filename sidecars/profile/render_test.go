package profile

import (
	"errors"
	"strings"
	"testing"
	"text/template"
	"text/template/parse"
)

// dataOfPods is what both engines see in these tests.
func dataOfPods() SharedData {
	labels := map[string]string{"app": "cart", "a": "", "z": "last"}
	return SharedData{Node: "n1", Version: "7", Network: NetworkData{InboundPort: 15006, OutboundPort: 15001}, Pods: []SharedPod{
		{PodData{Name: "a", IPs: []string{"10.0.0.1", "fd00::1"}, Labels: labels}, "cni-1"}, {PodData{Name: "b", Namespace: "shop"}, "cni-2"},
	}}
}

// rendered executes a template without quotes.
func rendered(text string) (string, error) {
	names := map[string]any{}
	for name := range builtins() {
		names[name] = true
	}
	trees, err := parse.Parse("f", text, "", "", names)
	if err != nil {
		return "", err
	}
	r := rendering{trees: trees, functions: builtins()}
	err = r.call("f", dataOfPods(), 0)
	return r.out.String(), err
}

func renderedByGo(text string) (string, error) {
	t, err := template.New("f").Option("missingkey=zero").Parse(text)
	if err != nil {
		return "", err
	}
	var out bounded
	err = t.Execute(&out, dataOfPods())
	return strings.ReplaceAll(out.String(), "<no value>", "<nil>"), err // the quoter prints nothing then
}

var templates = []string{
	`{{ .Node }} {{- .Version }} {{ 7 }} {{ true }} {{ "x" }} {{ 'a' }}`,
	`{{ range .Pods }}{{ .Name }}/{{ .Namespace }} {{ .PodData.Name }} {{ end }}`,
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
	`{{ range .Pods }}{{ .Missing }}{{ end }}`, `{{ .Node.Name }}`, `{{ index .Pods 2 }}`, `{{ index .Pods "a" }}`, `{{ slice .Node 2 1 }}`, `{{ eq 1 "a" }}`,
	`{{ lt true false }}`, `{{ len 3 }}`, `{{ "a" "b" }}`, `{{ .Node 1 }}`, `{{ range $a, $b := 3 }}{{ end }}`, `{{ range .Node }}{{ end }}`, `{{ not }}`, `{{ nil }}`, `{{ 0x1e }}{{ 1_000 }}{{ +3 }}{{ -0 }}`, `{{ $x = $x }}`, `{{ $x = 1 }}`, `{{ range $x = .Pods }}{{ end }}`, `{{ range -1 }}x{{ else }}y{{ end }}`,
	`{{ $x := 1 }}{{ with $x = 2 }}{{ $x }}{{ end }}{{ $x }}{{/* no */}}{{ (.Node) }}{{ ((index .Pods 0).Labels).app }}`,
}

// What a template gives is what text/template makes of it, and what that refuses is refused.
func TestRender_templates_asGoRendersThem(t *testing.T) {
	for _, text := range templates {
		want, errWant := renderedByGo(text)
		if got, err := rendered(text); (err == nil) != (errWant == nil) || err == nil && got != want {
			t.Errorf("%s\ngot  %q, %v\nwant %q, %v", text, got, err, want, errWant)
		}
	}
}

func TestRender_endless_isRefused(t *testing.T) {
	for text, want := range map[string]error{
		`{{ range 100000000000 }}{{ end }}`:                                       errTooLong,
		`{{ range 10000 }}{{ range 10000 }}{{ if 1 }}{{ end }}{{ end }}{{ end }}`: errTooLong,
		`{{ define "t" }}{{ template "t" }}{{ end }}{{ template "t" }}`:           errTooDeep,
	} {
		if _, err := rendered(text); !errors.Is(err, want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func FuzzRenderAsGoDoes(f *testing.F) {
	for _, text := range templates {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := rendered(text)
		if err != nil || strings.Contains(text, "printf") { // a format may ask for types
			return
		}
		if want, err := renderedByGo(text); err != nil || got != want {
			t.Errorf("%s\ngot  %q\nwant %q, %v", text, got, want, err)
		}
	})
}
