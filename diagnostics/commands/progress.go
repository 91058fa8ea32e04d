package commands

import (
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// isTerminal reports whether a person reads what is written.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// startProgress shows on a terminal what takes long, until stop is called: once a second, with how, which may be nil, for how far it has come.
func startProgress(out io.Writer, what string, how func() string) (stop func()) {
	file, ok := out.(*os.File)
	if !ok || !isTerminal(out) {
		return func() {}
	}
	const again = "\r\x1b[K" // the line is empty, and begins
	stopped, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for begun := ""; ; begun = again {
			select {
			case <-stopped:
				_, _ = file.WriteString(begun)
				return
			case <-tick.C:
			}
			line := what + " ..."
			if how != nil {
				line += " " + how()
			}
			_, _ = file.WriteString(again + fitting(file, line))
		}
	}()
	return func() { close(stopped); <-ended }
}

// fitting returns what fits into one row of a terminal: a line that wraps could not be removed.
func fitting(file *os.File, line string) string {
	width, _, err := term.GetSize(int(file.Fd()))
	if runes := []rune(line); err == nil && width > 1 && len(runes) >= width {
		return string(runes[:width-1])
	}
	return line
}
