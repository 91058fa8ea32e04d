package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// By default the agents have no port for `inspect`, `logs` and `exec`: a command runs in the agent's container. A log that is followed leaves no
// process there when its caller has gone.
//
//e2e:rounds nri
func TestInspectLogsAndExec_withoutAPort_runInTheAgentsContainer(t *testing.T) {
	t.Parallel()
	m := newManaged(t, talking)
	name := m.name + "/" + m.startManaged(t, plainPod("asked")).Name
	wantOutput := func(want string, code int, args ...string) {
		t.Helper()
		eventually(t, strings.Join(args, " "), func(ctx context.Context) error { // again, if a busy node breaks the stream
			var out, errOut bytes.Buffer
			cmd := exec.CommandContext(ctx, agentProgram(t), args...)
			cmd.Stdout, cmd.Stderr = &out, &errOut
			err := cmd.Run()
			if exit := (*exec.ExitError)(nil); cmd.ProcessState.ExitCode() != code || out.String() != want || err != nil && !errors.As(err, &exit) {
				return fmt.Errorf("%w: %q, %q", errors.Join(err, errors.ErrUnsupported), out.String(), errOut.String())
			}
			return nil
		})
	}
	if agent := m.agent(t); strings.Contains(agent.Annotations["pod-network-controller.istio.io/agent"], `"inspect"`) {
		t.Fatal("the agent answers on the network")
	}
	wantInOrder(t, wantInspected(t, "", name))
	wantOutput("1337\n", 0, "exec", name, "--", "id", "-u")
	wantOutput("", 5, "exec", name, "--", "sh", "-c", "exit 5")
	wantOutput("asked\n", 0, "exec", name, "--", "sh", "-c", "echo asked >/proc/1/fd/1; echo asked")
	wantOutput("asked\n", 0, "logs", name, "--tail", "1")

	follow := exec.CommandContext(t.Context(), agentProgram(t), "logs", name, "--follow", "--tail", "1")
	lines, err := follow.StdoutPipe()
	must(t, err)
	must(t, follow.Start())
	if line, err := bufio.NewReader(lines).ReadString('\n'); err != nil || line != "asked\n" { // all streams are there
		t.Errorf("followed: %q, %v", line, err)
	}
	must(t, following(name, 1))
	must(t, follow.Process.Kill())
	_ = follow.Wait() // it was killed
	eventually(t, "the end of the command in the agent's container", func(context.Context) error { return following(name, 0) })
}

// following returns an error unless so many processes of the node follow the log of a pod's proxy in an agent's container.
func following(pod string, want int) error {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(text), "sidecar\x00logs\x00"+pod) {
			found++
		}
	}
	if found != want {
		return fmt.Errorf("%d processes follow, want %d", found, want)
	}
	return nil
}
