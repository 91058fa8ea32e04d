package commands

import (
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/test/terminal"
)

// longMessage has the answer behind the 100th byte.
const longMessage = "annotation traffic.sidecar.istio.io/excludeOutboundIPRange is not known, and so the agent does not read it: did you mean traffic.sidecar.istio.io/excludeOutboundIPRanges?"

// on runs status on a terminal of some columns, or without one for 0, and returns what it has printed.
func on(t *testing.T, columns uint16, file string) string {
	t.Helper()
	if columns == 0 {
		_, out, _ := call(t, "", "status", "--kubeconfig", file)
		return out
	}
	master, slave := terminal.Open(t)
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	text := make(chan string)
	go func() {
		raw, _ := io.ReadAll(master) // ends with EIO once the other end is closed
		text <- strings.ReplaceAll(string(raw), "\r\n", "\n")
	}()
	program := cmdline.Root(agentstatus.Name)
	program.AddCommand(Program{}.Commands()...)
	cmdline.Run(program, []string{"status", "--kubeconfig", file}, strings.NewReader(""), slave, io.Discard)
	if err := slave.Close(); err != nil {
		t.Fatal(err)
	}
	return <-text
}

func TestStatus_longMessage_losesNothing(t *testing.T) {
	file := kubeconfigOf(t, oneNode(reportedPod("cart", "RedirectFailed", longMessage), reportedPod("web", "Initialized", "")))
	for columns, wantBeside := range map[uint16]bool{0: true, 40: false, 80: false, 200: true} {
		out := on(t, columns, file)
		if !strings.Contains(strings.Join(strings.Fields(out), " "), "failed nri 60m "+longMessage) {
			t.Errorf("%d columns: the message is not whole:\n%s", columns, out)
		}
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); strings.HasPrefix(line, " ") && n > int(columns) && len(strings.Fields(line)) > 1 {
				t.Errorf("%d columns: a line of %d:\n%s", columns, n, line)
			}
			if strings.HasPrefix(line, "shop") && strings.Contains(line, "cart") && strings.Contains(line, "60m  annotation") != wantBeside {
				t.Errorf("%d columns: the message begins beside its row: want %t:\n%s", columns, wantBeside, out)
			}
		}
	}
	if out := on(t, 0, file); !strings.Contains(out, "60m  "+longMessage+"\n") {
		t.Errorf("through a pipe a message is one line:\n%s", out)
	}
}

// What an agent says of its last error may be as long as a pod's message.
func TestStatus_wide_cutsNoLastError(t *testing.T) {
	s := oneNode()
	status, err := agentstatus.Parse(s.Pods[0].Annotations[agentstatus.Annotation])
	if err != nil {
		t.Fatal(err)
	}
	status.LastError = &agentstatus.Error{Pod: "shop/cart", Message: longMessage + "; " + longMessage, Time: time.Now()}
	s.Pods[0].Annotations[agentstatus.Annotation] = status.String()
	if _, out, _ := call(t, "", "status", "-o", "wide", "--kubeconfig", kubeconfigOf(t, s)); !strings.Contains(out, "ago: shop/cart: "+longMessage+"; "+longMessage) {
		t.Errorf("the error is cut:\n%s", out)
	}
}

// A narrow terminal, and wide characters, lose nothing and end.
func TestStatus_oddTerminal_losesNothing(t *testing.T) {
	const wide = "値が間違っています: 値 \"9100,http\" を直してください"
	file := kubeconfigOf(t, oneNode(reportedPod("cart", "RedirectFailed", wide)))
	for _, columns := range []uint16{1, 3, 20, 65535} {
		if out := on(t, columns, file); !strings.Contains(strings.Join(strings.Fields(out), " "), wide) || strings.Contains(out, "\x1b") {
			t.Errorf("%d columns:\n%s", columns, out)
		}
	}
}
