package charttest

import (
	"strings"
	"testing"

	"istio-pod-network-controller/hack/tools/helm/pairs"
)

// What the API server or the agent would not take, and what would wait for ever, is refused before either sees it. Alternatives of enums are those that the agent
// takes: TestEveryTwoValuesRenderTogether.
func TestValues_thatCannotWork_areRefused(t *testing.T) {
	var cases map[string]struct {
		Values map[string]any
		Says   string
	}
	table(t, "refused.yaml", &cases)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { refuses(t, yamlOf(t, c.Values), c.Says) })
	}
}

// Nothing of another type gets through the schema, and no key that is misspelled, or that an older chart had: each place is in the error.
func TestTheSchemaRefusesOtherTypes(t *testing.T) {
	parameters := newCover(t).Parameters()
	for name, wrong := range map[string]any{"a list in a list": []any{[]any{"nonsense"}}, "a number": 0.5} {
		values := map[string]any{}
		for _, p := range parameters {
			if p.Path != pairs.ClusterPath {
				pairs.Set(values, p.Path, wrong)
				pairs.Set(values, p.Path[:strings.LastIndex(p.Path, ".")+1]+"sweepInterval", "1m")
			}
		}
		_, err := install(t, yamlOf(t, values))
		for _, p := range parameters {
			at, object := "at '/"+strings.ReplaceAll(p.Path, ".", "/"), "at '"+strings.TrimSuffix("/"+strings.ReplaceAll(p.Path[:strings.LastIndex(p.Path, ".")+1], ".", "/"), "/")
			for _, want := range []string{at, object + "': additional properties 'sweepInterval' not allowed"} {
				if p.Path != pairs.ClusterPath && (err == nil || !strings.Contains(err.Error(), want)) {
					t.Errorf("%s is %s: want %q in the error\n%v", p.Path, name, want, err)
				}
			}
		}
	}
}
