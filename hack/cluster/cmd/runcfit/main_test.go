package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRewrite_machineWithoutACapability_keepsAllElse(t *testing.T) {
	const given = `{"linux":{"resources":{"hugepageLimits":[{"limit":0}],"memory":{"limit":9007199254740993}}},
		"process":{"args":["a"],"capabilities":{"bounding":["CAP_KILL","CAP_SYS_RESOURCE"],"effective":null},"oomScoreAdj":-998}}`
	poor := machine{missing: map[string]bool{resource: true}, oomScore: 7}
	for name, tt := range map[string]struct {
		in     string
		change func(map[string]any)
		want   string
	}{
		"a container on a poor machine": {
			in: given, change: poor.fitSpec,
			want: `{"linux":{"resources":{"memory":{"limit":9007199254740993}}},
				"process":{"args":["a"],"capabilities":{"bounding":["CAP_KILL"],"effective":null},"oomScoreAdj":7}}`,
		},
		"a container on a machine that has all": {
			in: given, change: machine{oomScore: -1000}.fitSpec,
			want: `{"linux":{"resources":{"memory":{"limit":9007199254740993}}},
				"process":{"args":["a"],"capabilities":{"bounding":["CAP_KILL","CAP_SYS_RESOURCE"],"effective":null},"oomScoreAdj":-998}}`,
		},
		"a process in a container":      {in: `{"capabilities":{"bounding":["CAP_SYS_RESOURCE"]}}`, change: poor.fitProcess, want: `{"capabilities":{"bounding":[]}}`},
		"a score that may be asked for": {in: `{"oomScoreAdj":1000}`, change: poor.fitProcess, want: `{"oomScoreAdj":1000}`},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.json")
			if err := os.WriteFile(file, []byte(tt.in), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := rewrite(file, tt.change); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var want bytes.Buffer
			if err := json.Compact(&want, []byte(tt.want)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want.String(), string(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRewrite_fileThatIsMissing_isNoError(t *testing.T) {
	if err := rewrite(filepath.Join(t.TempDir(), "x"), func(map[string]any) { t.Error("changed") }); err != nil {
		t.Error(err)
	}
}
