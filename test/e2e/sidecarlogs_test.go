package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
)

// talkingProxy prints 11 MiB, serves, and ends with exit code 3 and last words when it is told to.
const talkingProxy = `trap 'echo these are my last words; exit 3' USR1
echo "epoch $SIDECAR_EPOCH starts"
head -c 11534336 /dev/zero | tr '\0' x | fold -w 1023; echo
echo "epoch $SIDECAR_EPOCH has printed"
testapp serve -http=15001,15006,15021 2>/dev/null &
while :; do wait; done`

func talking(spec map[string]any) {
	spec["image"], spec["command"], spec["files"] = "localhost/tools:1", []any{"sh", "-c", talkingProxy}, []any{}
	spec["handover"] = "none"
	spec["readiness"] = map[string]any{"tcpPort": int64(15021), "startSeconds": int64(60)}
}

// sidecarCommand runs the agent's command about a pod's proxy where an administrator would: in the agent's container.
func (m managed) sidecarCommand(ctx context.Context, agent *corev1.Pod, stdin io.Reader, args ...string) (string, error) {
	return m.run(ctx, command{
		namespace: agentName, pod: agent.Name, container: "agent", stdin: stdin, argv: append([]string{"/" + agentName, "sidecar"}, args...),
	})
}

// What a proxy prints is found by kubectl exec alone, is bounded, and is followed past the bound; commands run in it as they do in a pod.
func TestSidecarLogsAndCommands(t *testing.T) {
	t.Parallel()
	m := newManaged(t, talking)
	pod, agent := m.startManaged(t, plainPod("talking")), m.agent(t)
	name := m.name + "/" + pod.Name
	last := func(want string, flags ...string) {
		t.Helper()
		eventually(t, "the last line "+want, func(ctx context.Context) error { // the runtime writes it some time after the proxy
			out, err := m.sidecarCommand(ctx, agent, nil, append([]string{"logs", name, "--tail=1"}, flags...)...)
			if err == nil && out != want+"\n" {
				err = fmt.Errorf("it is %.200q", out)
			}
			return err
		})
	}
	lines := m.followLog(t, agent, name)
	m.wantFollowed(t, agent, name, lines, "before")
	m.wantCommands(t, agent, name)
	m.wantRotated(t, pod)
	m.wantFollowed(t, agent, name, lines, "behind")
	last("behind")
	// Later, because the command would be killed with the proxy, and fail.
	_, err := m.sidecarCommand(t.Context(), agent, nil, "exec", name, "--", "sh", "-c", "(sleep 0.5; kill -USR1 1) >/dev/null 2>&1 &")
	must(t, err)
	m.awaitSidecar(t, pod.Name, says(true, "exit code 3", "these are my last words"))
	m.awaitSidecar(t, pod.Name, isServing(1))
	last("these are my last words", "--previous")
	last("epoch 1 has printed")
}

// wantFollowed has the proxy print words until they are among the lines that are followed.
func (m managed) wantFollowed(t *testing.T, agent *corev1.Pod, name string, lines <-chan string, words string) {
	t.Helper()
	eventually(t, "the followed log's line "+words, func(ctx context.Context) error {
		if _, err := m.sidecarCommand(ctx, agent, nil, "exec", name, "--", "sh", "-c", "echo "+words+" >/proc/1/fd/1"); err != nil {
			return err
		}
		for {
			select {
			case <-time.After(time.Second):
				return errors.New("it is not followed")
			case line := <-lines:
				if line == words {
					return nil
				}
			}
		}
	})
}

// followLog returns the lines of logs -f, from its last one on, until the test ends.
func (m managed) followLog(t *testing.T, agent *corev1.Pod, name string) <-chan string {
	t.Helper()
	read, write := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	lines := make(chan string, 100)
	go func() {
		_ = m.stream(ctx, command{namespace: agentName, pod: agent.Name, container: "agent", argv: []string{"/" + agentName, "sidecar", "logs", name, "-f", "--tail=1"}},
			remotecommand.StreamOptions{Stdout: write, Stderr: write})
		_ = write.Close()
	}()
	go func() {
		for text := bufio.NewScanner(read); text.Scan(); {
			lines <- text.Text()
		}
	}()
	t.Cleanup(func() { cancel(); _ = read.Close() })
	return lines
}

// wantRotated waits until the kubelet has rotated the log.
func (m managed) wantRotated(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	log := filepath.Join(m.node.NodeRoot, "var/log/pods", fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID), managedProxy, "0.log")
	eventually(t, "the log's rotation", func(context.Context) error {
		now, err := os.Stat(log)
		if err != nil {
			return err
		}
		older, err := filepath.Glob(log + ".*")
		if now.Size() > 10<<20 || len(older) != 1 {
			err = errors.Join(err, fmt.Errorf("%d bytes, and the older files %q", now.Size(), older))
		}
		return err
	})
}

// wantCommands wants commands in a proxy to have its user, their input, a terminal and an exit code.
func (m managed) wantCommands(t *testing.T, agent *corev1.Pod, name string) {
	t.Helper()
	for what, c := range map[string]struct {
		args  []string
		stdin io.Reader
		want  string
		code  int
	}{
		"its user and files":       {args: []string{"exec", name, "--", "sh", "-c", "id -u; touch /run/sidecar/it; touch /it"}, want: "1337\n", code: 1},
		"an exit code":             {args: []string{"exec", name, "--", "sh", "-c", "exit 5"}, code: 5},
		"input, to its end":        {args: []string{"exec", "-i", name, "--", "sort"}, stdin: strings.NewReader("b\na\n"), want: "a\nb\n"},
		"an exit code, with input": {args: []string{"exec", "-i", name, "--", "sh", "-c", "read a; echo $a; exit 6"}, stdin: strings.NewReader("x\n"), want: "x\n", code: 6},
		"a terminal without one":   {args: []string{"exec", "-it", name, "--", "tty"}, stdin: strings.NewReader(""), code: 1},
		"what is not there":        {args: []string{"exec", name, "--", "no-such-program"}, code: 1},
		"no such pod":              {args: []string{"exec", name + "-x", "--", "id"}, code: 1},
	} {
		out, err := m.sidecarCommand(t.Context(), agent, c.stdin, c.args...)
		var exit exec.CodeExitError
		if errors.As(err, &exit); out != c.want || exit.Code != c.code || (err == nil) != (c.code == 0) {
			t.Errorf("%s: %q, want %q and exit code %d: %v", what, out, c.want, c.code, err)
		}
	}
	var out bytes.Buffer
	sizes := make(chan remotecommand.TerminalSize, 1)
	sizes <- remotecommand.TerminalSize{Width: 81, Height: 27}
	keys, typed := io.Pipe()
	go func() { _, _ = io.WriteString(typed, "hello\r") }()
	const script = `until [ "$(stty size)" = "27 81" ]; do usleep 50000; done; read -r word; echo "heard $word"; exit 4`
	err := m.stream(t.Context(), command{
		namespace: agentName, pod: agent.Name, container: "agent", argv: []string{"/" + agentName, "sidecar", "exec", "-it", name, "--", "sh", "-c", script},
	}, remotecommand.StreamOptions{Stdin: keys, Stdout: &out, Tty: true, TerminalSizeQueue: sizeQueue(sizes)})
	_ = typed.Close()
	var exit exec.CodeExitError
	if errors.As(err, &exit); exit.Code != 4 || !strings.Contains(out.String(), "heard hello") {
		t.Errorf("in a terminal: %q, error %v", out.String(), err)
	}
}

// sizeQueue is a channel of a terminal's sizes as the client wants them.
type sizeQueue <-chan remotecommand.TerminalSize

func (q sizeQueue) Next() *remotecommand.TerminalSize {
	size, ok := <-q
	if !ok {
		return nil
	}
	return &size
}
