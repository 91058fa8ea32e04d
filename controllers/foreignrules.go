package controllers

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/podreport"
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

// recordNotes makes an event of each note that the pod did not have. before is the pod as it was. An unchanged note about foreign rules makes none,
// whatever else has changed.
func (w *Writer) recordNotes(r Report, before *corev1.Pod) {
	said, ok := detailsOn(before)
	if ok && said.Notes == truncate(r.Notes) {
		return
	}
	known := strings.Split(said.Notes, "\n")
	for note := range strings.Lines(r.Notes) {
		note, reason := strings.TrimSpace(note), podreport.ReasonNote
		if strings.HasPrefix(note, foreignNote) {
			if reason = podreport.ReasonRulesPreempted; ok && slices.Contains(known, note) {
				continue
			}
		}
		w.recorder.Eventf(before, nil, corev1.EventTypeWarning, reason, "Redirect", "%s", truncate(note))
	}
}
