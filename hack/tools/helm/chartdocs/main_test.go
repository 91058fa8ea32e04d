package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const header = "| Value | Type | Default | Meaning |\n|---|---|---|---|\n"

func TestRender(t *testing.T) {
	for name, tc := range map[string]struct{ in, want, wantErr string }{
		"a value":                          {in: "# What it is.\na: 1\n", want: "| `a` | number | `1` | What it is. |\n"},
		"a comment of two lines":           {in: "# One\n# two.\na: x\n", want: "| `a` | string | `\"x\"` | One two. |\n"},
		"the head of the file is no value": {in: "# About the file.\n\n# What it is.\na: []\n", want: "| `a` | array | `[]` | What it is. |\n"},
		"nested values by their path":      {in: "a:\n  # Inner.\n  b: true\n", want: "| `a.b` | boolean | `true` | Inner. |\n"},
		"a commented mapping is one value": {in: "# Whole.\na: {b: c}\n", want: "| `a` | object | `{\"b\":\"c\"}` | Whole. |\n"},
		"a group before its values":        {in: "## Outer.\na:\n  # Inner.\n  b: 1\n", want: "| **a** | | | Outer. |\n| `a.b` | number | `1` | Inner. |\n"},
		"a bar does not end the cell":      {in: "# This|that.\na: 1\n", want: "| `a` | number | `1` | This\\|that. |\n"},
		"sources are for others":           {in: "# What it is.\n# Sources:\n# a: b\na: 1\n", want: "| `a` | number | `1` | What it is. |\n"},
		"a value without a comment":        {in: "# Fine.\na: 1\nb: 2\n", wantErr: "b (line 3) has no comment"},
		"a list instead of values":         {in: "- a\n", wantErr: "not one mapping"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := render([]byte(tc.in))
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want %q in it", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(header+tc.want, got); diff != "" {
				t.Errorf("table (-want +got):\n%s", diff)
			}
		})
	}
}
