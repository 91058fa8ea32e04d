package commands

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"istio-pod-network-controller/test/terminal"
)

func TestStartProgress_terminal_hasALineForWhatTakesLong(t *testing.T) {
	master, slave := terminal.Open(t)
	var none bytes.Buffer
	synctest.Test(t, func(*testing.T) {
		startProgress(slave, "short")()
		stop, stopNone := startProgress(slave, "asking"), startProgress(&none, "asking")
		<-time.After(2500 * time.Millisecond) // of the bubble's clock
		stop()
		stopNone()
	})
	const want = "asking ...\r\n"
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
	if err := writeTable(&out, [][]string{{"node", strings.Repeat("v", 1<<17), "ok"}, {"a", "b", "c"}}, 0); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(out.String(), "\n"); len(lines[1]) > 300 || !strings.HasSuffix(lines[0], "...  ok") {
		t.Errorf("%d bytes", out.Len())
	}
}
