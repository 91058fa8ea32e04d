//go:build !nosidecars

package cli

import (
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/sidecars/node"
	"istio-pod-network-controller/test/terminal"
)

// Keys reach the command as they are, the size follows, and the terminal is as before in the end.
func TestATerminalIsTakenAndGivenBack(t *testing.T) {
	master, slave := terminal.Open(t)
	resize := func(width, height uint16) {
		t.Helper()
		if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height}); err != nil {
			t.Fatal(err)
		}
	}
	flags := func() uint32 {
		t.Helper()
		got, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return got.Lflag
	}
	before := flags()
	resize(80, 25)
	sizes, restore, err := takeTerminal(t.Context(), slave)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := <-sizes, (node.TerminalSize{Width: 80, Height: 25}); got != want {
		t.Errorf("the size is %v, want %v", got, want)
	}
	if flags()&(unix.ECHO|unix.ICANON|unix.ISIG) != 0 {
		t.Errorf("the terminal is not raw: %#x", flags())
	}
	resize(100, 40)
	if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil { // the kernel tells the terminal's own processes
		t.Fatal(err)
	}
	if got, want := <-sizes, (node.TerminalSize{Width: 100, Height: 40}); got != want {
		t.Errorf("the size is %v, want %v", got, want)
	}
	restore()
	if _, more := <-sizes; more || flags() != before {
		t.Errorf("the terminal is not as before: %#x, was %#x", flags(), before)
	}
}
