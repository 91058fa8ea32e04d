package commands

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// progressAfter is how long something takes before its progress is shown.
const progressAfter = time.Second

// isTerminal reports whether a person reads what is written.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// colourOn reports whether output may have colours: on a terminal that knows them, unless NO_COLOR (https://no-color.org) is set.
func colourOn(w io.Writer) bool {
	return isTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// progress is a line on a terminal that is there only while something takes long.
type progress struct {
	out   io.Writer
	what  string
	timer *time.Timer

	mu           sync.Mutex
	shown, ended bool
	how          string
}

// startProgress shows what is done from progressAfter on, if out is a terminal.
func startProgress(out io.Writer, what string) *progress {
	p := &progress{out: out, what: what}
	if isTerminal(out) {
		p.timer = time.AfterFunc(progressAfter, func() { p.show(true) })
	}
	return p
}

// set says how far it has come.
func (p *progress) set(how string) {
	p.mu.Lock()
	p.how = how
	p.mu.Unlock()
	p.show(false)
}

// show writes the line; for the first time only if it begins.
func (p *progress) show(begin bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || !begin && !p.shown {
		return
	}
	p.shown = true
	line := p.what + " ..."
	if p.how != "" {
		line += " " + p.how
	}
	_, _ = fmt.Fprintf(p.out, "\r\x1b[K%s", fitting(p.out, line))
}

// fitting returns what fits into one row of a terminal: a line that wraps could not be removed.
func fitting(out io.Writer, line string) string {
	file, ok := out.(*os.File)
	if !ok {
		return line
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if runes := []rune(line); err == nil && width > 1 && len(runes) >= width {
		return string(runes[:width-1])
	}
	return line
}

// stop removes the line.
func (p *progress) stop() {
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	if p.shown {
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
	}
}
