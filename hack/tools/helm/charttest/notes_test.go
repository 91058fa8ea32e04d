package charttest

import (
	"strings"
	"testing"
)

// What is printed after an installation holds for its values and its cluster. Ten lines are read.
func TestNotesAreTrue(t *testing.T) {
	var cases map[string]struct {
		In, Kind      string
		Want, WantNot []string
	}
	table(t, "notes.yaml", &cases)
	for name, tc := range cases {
		notes := rendering(t, tc.In, tc.Kind).Notes
		if lines := strings.Count(notes, "\n") + 1; tc.In == "{}" && lines > 10 {
			t.Errorf("%s: %d lines", name, lines)
		}
		notes = name + ":\n" + notes
		expectWords(t, notes, true, tc.Want...)
		expectWords(t, notes, false, append(tc.WantNot, "\n\n\n")...)
	}
}
