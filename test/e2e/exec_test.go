package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
)

// command is a program run in a container.
type command struct {
	namespace, pod, container string
	argv                      []string
	stdin                     io.Reader
}

// run gives what the program printed; the error has what it complained about.
func (c *cluster) run(ctx context.Context, cmd command) (string, error) {
	var out, errs bytes.Buffer
	if err := c.stream(ctx, cmd, remotecommand.StreamOptions{Stdin: cmd.stdin, Stdout: &out, Stderr: &errs}); err != nil {
		return out.String(), fmt.Errorf("%w: %s", err, errs.String())
	}
	return out.String(), nil
}

// stream runs the program with these streams, or a terminal.
func (c *cluster) stream(ctx context.Context, cmd command, streams remotecommand.StreamOptions) error {
	url := c.api.CoreV1().RESTClient().Get().Resource("pods").Namespace(cmd.namespace).Name(cmd.pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: cmd.container, Command: cmd.argv, Stdin: streams.Stdin != nil, Stdout: true, Stderr: streams.Stderr != nil, TTY: streams.Tty,
		}, scheme.ParameterCodec).URL()
	executor, err := remotecommand.NewWebSocketExecutor(c.rest, http.MethodGet, url.String())
	if err == nil {
		err = executor.StreamWithContext(ctx, streams)
	}
	if err != nil {
		return fmt.Errorf("run %v: %w", cmd.argv, err)
	}
	return nil
}

// askFrom has the pod's application make one connection, and gives the answer.
func (s *space) askFrom(t testing.TB, pod *corev1.Pod, to netip.AddrPort) answer {
	t.Helper()
	out, err := s.tryFrom(t, pod, "get", "http://"+to.String()+"/")
	must(t, err)
	return decode[answer](t, out)
}

// tryFrom has the pod's application be a client, and gives what it printed.
func (s *space) tryFrom(t testing.TB, pod *corev1.Pod, args ...string) (string, error) {
	t.Helper()
	return s.run(t.Context(), command{
		namespace: s.name, pod: pod.Name, container: "app", argv: append([]string{"/testapp"}, args...),
	})
}

func decode[T any](t testing.TB, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("read %q: %v", text, err)
	}
	return v
}
