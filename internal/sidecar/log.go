package sidecar

import "strings"

// logFields is how many words precede the text in a line of a container's log, as CRI has it: time, stream and whether the line is whole.
const logFields = 3

// LogText returns what a container has printed in a line of its log. ok is false if it is no such line.
func LogText(line string) (text string, ok bool) {
	fields := strings.SplitN(line, " ", logFields+1)
	if len(fields) <= logFields {
		return "", false
	}
	return fields[logFields], true
}
