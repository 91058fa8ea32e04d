package commands

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"istio-pod-network-controller/test/terminal"
)

func TestColoursAreForTerminals(t *testing.T) {
	if colourOn(&bytes.Buffer{}) {
		t.Error("colours in a buffer")
	}
	_, slave := terminal.Open(t)
	t.Setenv("TERM", "xterm")
	for value, want := range map[string]bool{"": true, "1": false} {
		t.Setenv("NO_COLOR", value)
		if colourOn(slave) != want {
			t.Errorf("NO_COLOR=%q: %t", value, !want)
		}
	}
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "dumb")
	if colourOn(slave) {
		t.Error("colours on a terminal without")
	}
	var out bytes.Buffer
	rows := [][]cell{{{text: "a", colour: red}, {text: "b"}}, {{text: "long"}, {text: "c"}}}
	if err := writeTable(&out, true, rows); err != nil || out.String() != "\x1b[31ma\x1b[0m     b\nlong  c\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// What takes long shows so on a terminal, and nothing stays of it.
func TestProgressIsShownOnATerminal(t *testing.T) {
	master, slave := terminal.Open(t)
	p := startProgress(slave, "asking")
	p.set("1 pods") // too early
	p.show(true)
	p.set("2 pods")
	p.stop()
	p.set("3 pods") // too late
	const want = "\r\x1b[Kasking ... 1 pods\r\x1b[Kasking ... 2 pods\r\x1b[K"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(master, got); err != nil || string(got) != want {
		t.Errorf("%q, want %q, %v", got, want, err)
	}
	var none bytes.Buffer
	p = startProgress(&none, "asking")
	p.set("1 pods")
	p.stop()
	if p.timer != nil || none.Len() > 0 {
		t.Errorf("in a buffer: %q", none.String())
	}
}

// Whoever has an agent's token writes its version, as long as an annotation may be.
func TestALongCellLeavesTheTableReadable(t *testing.T) {
	var out strings.Builder
	if err := writeTable(&out, false, [][]cell{plain("node", strings.Repeat("v", 1<<17), "ok"), plain("a", "b", "c")}); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(out.String(), "\n"); len(lines[1]) > 300 || !strings.HasSuffix(lines[0], "...  ok") {
		t.Errorf("%d bytes", out.Len())
	}
}
