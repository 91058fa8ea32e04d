package commands

import (
	"bytes"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"istio-pod-network-controller/test/terminal"
)

// What takes long shows so on a terminal, and nothing stays of it.
func TestStartProgress_terminal_hasALineUntilItIsStopped(t *testing.T) {
	master, slave := terminal.Open(t)
	var none bytes.Buffer
	synctest.Test(t, func(*testing.T) {
		startProgress(slave, "short", nil)() // it has ended before a line is due
		pods := 0
		how := func() string { pods++; return strconv.Itoa(pods) + " pods" }
		stop, stopNone := startProgress(slave, "asking", how), startProgress(&none, "asking", how)
		<-time.After(2500 * time.Millisecond) // of the bubble's clock
		stop()
		stopNone()
	})
	const want = "\r\x1b[Kasking ... 1 pods\r\x1b[Kasking ... 2 pods\r\x1b[K"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(master, got); err != nil || string(got) != want {
		t.Errorf("%q, want %q, %v", got, want, err)
	}
	if none.Len() > 0 {
		t.Errorf("in a buffer: %q", none.String())
	}
}

// Whoever has an agent's token writes its version, as long as an annotation may be.
func TestALongCellLeavesTheTableReadable(t *testing.T) {
	var out strings.Builder
	if err := writeTable(&out, [][]string{{"node", strings.Repeat("v", 1<<17), "ok"}, {"a", "b", "c"}}); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(out.String(), "\n"); len(lines[1]) > 300 || !strings.HasSuffix(lines[0], "...  ok") {
		t.Errorf("%d bytes", out.Len())
	}
}
