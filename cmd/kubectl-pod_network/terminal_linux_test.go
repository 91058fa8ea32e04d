package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/test/terminal"
)

// On a narrow terminal lines wrap as kubectl's do.
func TestRun_terminalOf40Columns_showsAll(t *testing.T) {
	_, url := newServer(t)
	t.Setenv("KUBECONFIG", kubeconfig(t, url, "{token: abc}"))
	master, slave := terminal.Open(t)
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 40}); err != nil {
		t.Fatal(err)
	}
	shown := make(chan string)
	go func() {
		text, _ := io.ReadAll(master) // ends with EIO once the other end is closed
		shown <- string(text)
	}()
	code := run([]string{"status", "-A", "--node", "node"}, os.Stdin, slave, io.Discard)
	if err := slave.Close(); err != nil {
		t.Fatal(err)
	}
	text := <-shown
	if code != 0 || !strings.HasPrefix(text, "NODE  AGENT") || !strings.Contains(text, "\r\nnode  ") || !strings.HasSuffix(text, "\r\n") {
		t.Errorf("code %d, %q", code, text)
	}
}
