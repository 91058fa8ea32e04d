package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// By default the agents have no port for `inspect`, `logs` and `exec`: a command runs in the agent's container.
//
//e2e:rounds nri
func TestInspectLogsAndExec_withoutAPort_runInTheAgentsContainer(t *testing.T) {
	t.Parallel()
	m := newManaged(t, talking(0))
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
	if doc := wantInspected(t, "", name); doc.Agreement.Verdict != "agree" || len(doc.Programmed.Rules) == 0 {
		t.Errorf("inspect: %+v", doc)
	}
	wantOutput("1337\n", 0, "exec", name, "--", "id", "-u")
	wantOutput("", 5, "exec", name, "--", "sh", "-c", "exit 5")
	wantOutput("asked\n", 0, "exec", name, "--", "sh", "-c", "echo asked >/proc/1/fd/1; echo asked")
	wantOutput("asked\n", 0, "logs", name, "--tail", "1")

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	follow := exec.CommandContext(ctx, agentProgram(t), "logs", name, "--follow", "--tail", "1")
	lines, err := follow.StdoutPipe()
	must(t, err)
	must(t, follow.Start())
	if line, err := bufio.NewReader(lines).ReadString('\n'); err != nil || line != "asked\n" {
		t.Errorf("followed: %q, %v", line, err)
	}
	cancel()
	_ = follow.Wait() // it was killed
}
