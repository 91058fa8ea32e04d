package sidecars

import (
	"bytes"
	"io"
	"os"
	"strings"
	"unicode"

	"istio-pod-network-controller/internal/sidecar"
)

const (
	// tailBytes is how much of the end of a log is read, and maxWords how much of it is shown.
	tailBytes = 8 << 10
	maxWords  = 1 << 10
)

// lastWords returns the end of a container's log for a message, or "".
func lastWords(path string) string {
	f, err := os.Open(path) //nolint:gosec // the runtime names the path
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // it was only read
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	} else if info.Size() > tailBytes {
		if _, err := f.Seek(-tailBytes, io.SeekEnd); err != nil {
			return ""
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, tailBytes))
	if err != nil {
		return ""
	}
	var lines []string
	for line := range bytes.Lines(text) {
		if words, ok := sidecar.LogText(strings.TrimSpace(string(line))); ok {
			lines = append(lines, words)
		}
	}
	words := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.Join(lines, " / "))
	if len(words) > maxWords {
		words = "..." + strings.ToValidUTF8(words[len(words)-maxWords:], "")
	}
	if words == "" {
		return ""
	}
	return "; its last words: " + words
}
