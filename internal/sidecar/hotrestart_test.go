package sidecar

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseHotRestart_labels_areReadBack(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want *HotRestart
	}{
		"a place":              {"3/1/11.104", &HotRestart{Line: 3, Epoch: 1, Version: "11.104"}},
		"an unknown version":   {"0/0/", &HotRestart{}},
		"no label":             {"", nil},
		"a number is missing":  {"3/11.104", nil},
		"a line that is none":  {"a/1/11.104", nil},
		"an epoch that is -1":  {"1/-1/11.104", nil},
		"a version with a bar": {"1/1/a/b", &HotRestart{Line: 1, Epoch: 1, Version: "a/b"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := ParseHotRestart(c.in)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if got != nil && got.String() != c.in {
				t.Errorf("written as %q", got)
			}
		})
	}
}
