// Command istio-pod-network-probe asks the agent in its own pod, over a socket file, for its health. The kubelet runs it every few
// seconds, so it must be cheaper to start than the agent's own program. Exit status: 0 if the answer is 200, otherwise 1, with the
// agent's or the kernel's error.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// maxAnswer bounds an answer, which is a few lines.
const maxAnswer = 16 << 10

// exitError is the exit code other than 0.
const exitError = 1 // no answer, or another status than 200

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, errOut io.Writer) int {
	fs := flag.NewFlagSet("istio-pod-network-probe", flag.ContinueOnError)
	fs.SetOutput(errOut)
	socket := fs.String("socket", "", "the agent's socket file (required)")
	timeout := fs.Duration("timeout", 4*time.Second, "how long the answer may take; less than the kubelet allows, so that the kubelet gets the reason")
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return exitError // flag has printed the error
	case *socket == "":
		err = errors.New("-socket: required")
	case fs.NArg() != 1 || !strings.HasPrefix(fs.Arg(0), "/") || strings.ContainsAny(fs.Arg(0), " \r\n"):
		err = fmt.Errorf("arguments %q: want one path, such as /readyz", fs.Args())
	case *timeout <= 0:
		err = fmt.Errorf("-timeout: value %s: want more than 0", *timeout)
	default:
		err = probe(*socket, fs.Arg(0), *timeout)
	}
	if err != nil {
		_, _ = fmt.Fprintln(errOut, "error:", err)
		return exitError
	}
	return 0
}

// probe speaks HTTP 1.0, in which the server closes the connection after its answer. A probe needs no more, and without net/http the
// program starts faster.
func probe(socket, path string, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	conn, err := (&net.Dialer{Deadline: deadline}).Dial("unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.0\r\n\r\n"); err != nil {
		return fmt.Errorf("ask for %s: %w", path, err)
	}
	answer, err := io.ReadAll(io.LimitReader(conn, maxAnswer))
	if err != nil {
		return fmt.Errorf("wait for the answer to %s: %w", path, err)
	}
	return checkAnswer(path, string(answer))
}

// checkAnswer returns nil for an answer with status 200.
func checkAnswer(path, answer string) error {
	head, body, complete := strings.Cut(answer, "\r\n\r\n")
	status, _, _ := strings.Cut(head, "\r\n")
	version, code, _ := strings.Cut(status, " ")
	code, _, _ = strings.Cut(code, " ")
	switch {
	case !complete || !strings.HasPrefix(version, "HTTP/1.") || len(code) != 3:
		return fmt.Errorf("the answer to %s is not HTTP: %.80q", path, answer)
	case code != "200":
		return fmt.Errorf("%s is answered %s: %s", path, code, strings.TrimSpace(body))
	}
	return nil
}
