package controllers

import (
	"fmt"
	"strings"
)

const (
	// foreignNote begins the note of a pod in which foreign rules may decide before ours, and are accepted.
	foreignNote = "foreign rules may decide about the pod's packets before ours: "
	// longestForeignNote bounds it, so that the pod's report has room for all of it.
	longestForeignNote = 700
)

// notes returns what a report says beside its message, one sentence a line: foreign rules that are accepted, and settings that may not do what
// their author expects.
func (f Findings) notes(settings []string) string {
	if f.Preempted == "" || !f.accepted {
		return strings.Join(settings, "\n")
	}
	note, lines := foreignNote, strings.Split(f.Preempted, "\n")
	for i, line := range lines {
		if i > 0 {
			note += "; "
		}
		if i > 0 && len(note)+len(line) > longestForeignNote {
			note += fmt.Sprintf("and %d more", len(lines)-i)
			break
		}
		note += line
	}
	return strings.Join(append([]string{note}, settings...), "\n")
}
