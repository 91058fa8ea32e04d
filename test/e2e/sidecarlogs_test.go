package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
)

// talkingProxy serves, and ends with exit code 3 and last words when it is told to. Before that, the first of a pod prints as many bytes as its argument says.
const talkingProxy = `trap 'echo these are my last words; exit 3' USR1
echo "epoch $SIDECAR_EPOCH starts"
if [ "$SIDECAR_EPOCH" = 0 ]; then head -c "$1" /dev/zero | tr '\0' x | fold -w 1023; echo; fi
echo "epoch $SIDECAR_EPOCH has printed"
testapp serve -http=15001,15006,15021 2>/dev/null &
while :; do wait; done`

func talking(size int) func(spec map[string]any) {
	return func(spec map[string]any) {
		spec["image"], spec["command"], spec["files"] = "localhost/tools:1", []any{"sh", "-c", talkingProxy, "sh", strconv.Itoa(size)}, []any{}
		handsOver(spec, "none")
		spec["readiness"] = map[string]any{"tcpPort": int64(15021), "startSeconds": int64(patience / time.Second)}
	}
}

// sidecarCommand runs the agent's command about a pod's proxy where an administrator would: in the agent's container.
func (m managed) sidecarCommand(ctx context.Context, agent *corev1.Pod, stdin io.Reader, args ...string) (string, error) {
	return m.run(ctx, command{
		namespace: agentName, pod: agent.Name, container: "agent", stdin: stdin, argv: append([]string{"/" + agentName, "sidecar"}, args...),
	})
}

// What a proxy prints is found by kubectl exec alone, is bounded, and is followed past the bound; commands run in it as they do in a pod.
//
//e2e:rounds nri
func TestSidecarLogsAndCommands(t *testing.T) {
	t.Parallel()
	m := newManaged(t, talking(11<<20)) // the kubelet rotates from 10 MiB on
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
	log := m.followLog(t, agent, name, "before")
	m.wantCommands(t, agent, name)
	m.wantRotated(t, pod)
	m.wantFollowed(t, agent, name, log, "behind")
	last("behind")
	must(t, syscall.Kill(m.containerPID(t, pod, managedProxy), syscall.SIGUSR1))
	m.awaitSidecar(t, pod.Name, says(true, "exit code 3", "these are my last words"))
	m.awaitSidecar(t, pod.Name, isServing(1))
	last("these are my last words", "--previous")
	last("epoch 1 has printed")
}

// followedLog is what logs -f prints, line by line. ended says that it has stopped, and why.
type followedLog struct {
	lines chan string
	ended chan error
}

// errLogEnded is that of a followed log that has stopped.
var errLogEnded = errors.New("logs -f has ended")

// followLog follows the log until the test ends, and returns when words that the proxy prints are followed. It tries again what ends before
// that; then the stream is to go on.
func (m managed) followLog(t *testing.T, agent *corev1.Pod, name, words string) (log followedLog) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	log = m.startLog(ctx, agent, name)
	eventually(t, "the followed log's line "+words, func(asking context.Context) error {
		err := m.hears(asking, agent, name, log, words)
		if errors.Is(err, errLogEnded) {
			log = m.startLog(ctx, agent, name)
		}
		return err
	})
	return log
}

// wantFollowed has the proxy print words until they are among the lines that are followed.
func (m managed) wantFollowed(t *testing.T, agent *corev1.Pod, name string, log followedLog, words string) {
	t.Helper()
	eventually(t, "the followed log's line "+words, func(ctx context.Context) error {
		err := m.hears(ctx, agent, name, log, words)
		if errors.Is(err, errLogEnded) {
			t.Fatal(err)
		}
		return err
	})
}

// hears has the proxy print words once, and wants them among the lines that are followed, within a second.
func (m managed) hears(ctx context.Context, agent *corev1.Pod, name string, log followedLog, words string) error {
	if _, err := m.sidecarCommand(ctx, agent, nil, "exec", name, "--", "sh", "-c", "echo "+words+" >/proc/1/fd/1"); err != nil {
		return err
	}
	for enough := time.After(time.Second); ; {
		select {
		case <-enough:
			return errors.New("it is not followed")
		case err := <-log.ended:
			return fmt.Errorf("%w: %w", errLogEnded, err)
		case line := <-log.lines:
			if line == words {
				return nil
			}
		}
	}
}

func (m managed) startLog(ctx context.Context, agent *corev1.Pod, name string) followedLog {
	log := followedLog{make(chan string), make(chan error, 1)}
	read, write := io.Pipe()
	var complaint bytes.Buffer
	go func() {
		err := m.stream(ctx, command{namespace: agentName, pod: agent.Name, container: "agent", argv: []string{"/" + agentName, "sidecar", "logs", name, "-f", "--tail=1"}},
			remotecommand.StreamOptions{Stdout: write, Stderr: &complaint})
		log.ended <- fmt.Errorf("%w: %s", cmp.Or(err, io.EOF), complaint.String())
		_ = write.Close()
	}()
	go func() {
		for text := bufio.NewScanner(read); text.Scan(); {
			select {
			case log.lines <- text.Text():
			case <-ctx.Done():
				_ = read.Close()
				return
			}
		}
	}()
	return log
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
		stdin string
		want  string
		code  int
	}{
		"its user and files":       {args: []string{"exec", name, "--", "sh", "-c", "id -u; touch /run/sidecar/it; touch /it"}, want: "1337\n", code: 1},
		"an exit code":             {args: []string{"exec", name, "--", "sh", "-c", "exit 5"}, code: 5},
		"input, to its end":        {args: []string{"exec", "-i", name, "--", "sort"}, stdin: "b\na\n", want: "a\nb\n"},
		"an exit code, with input": {args: []string{"exec", "-i", name, "--", "sh", "-c", "read a; echo $a; exit 6"}, stdin: "x\n", want: "x\n", code: 6},
		"a terminal without one":   {args: []string{"exec", "-it", name, "--", "tty"}, code: 1},
		"what is not there":        {args: []string{"exec", name, "--", "no-such-program"}, code: 1},
		"no such pod":              {args: []string{"exec", name + "-x", "--", "id"}, code: 1},
	} {
		var out string
		var err error
		var exit exec.CodeExitError
		eventually(t, what, func(ctx context.Context) error { // again, if a busy node breaks the stream: then there is no exit code
			var stdin io.Reader
			if strings.HasPrefix(c.args[1], "-i") {
				stdin = strings.NewReader(c.stdin)
			}
			out, err = m.sidecarCommand(ctx, agent, stdin, c.args...)
			if err != nil && !errors.As(err, &exit) {
				return err
			}
			return nil
		})
		if out != c.want || exit.Code != c.code || (err == nil) != (c.code == 0) {
			t.Errorf("%s: %q, want %q and exit code %d: %v", what, out, c.want, c.code, err)
		}
	}
	var out bytes.Buffer
	sizes := make(chan remotecommand.TerminalSize, 1)
	sizes <- remotecommand.TerminalSize{Width: 81, Height: 27}
	keys, typed := io.Pipe()
	go func() { _, _ = io.WriteString(typed, "hello\r") }()
	const script = `until [ "$(stty size)" = "27 81" ]; do usleep 50000; done; read -r word; echo "heard $word"; exit 4`
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := m.stream(ctx, command{
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
