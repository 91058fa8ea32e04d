package container

import (
	"context"
	"fmt"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Output is what a command has printed, and its exit code.
type Output struct {
	Out, Err []byte
	Code     int32
}

// Exec runs a command in a container and waits for its end, for timeout at most. The runtime keeps up to 16 MiB of what it prints.
func (r *Runtime) Exec(ctx context.Context, id string, command []string, timeout time.Duration) (Output, error) {
	seconds := int64((timeout + time.Second - 1) / time.Second)
	resp, err := r.runtime.ExecSync(ctx, &criv1.ExecSyncRequest{ContainerId: id, Cmd: command, Timeout: seconds})
	if err != nil {
		return Output{}, fmt.Errorf("run command in container %s: %w", id, gone(err))
	}
	return Output{Out: resp.GetStdout(), Err: resp.GetStderr(), Code: resp.GetExitCode()}, nil
}

// ExecURL returns the address of the runtime's at which a command's input and output are streamed, as SPDY: the command starts when somebody
// connects there, within a minute. With a terminal both outputs are one.
func (r *Runtime) ExecURL(ctx context.Context, id string, command []string, terminal bool) (string, error) {
	resp, err := r.runtime.Exec(ctx, &criv1.ExecRequest{
		ContainerId: id, Cmd: command, Tty: terminal, Stdin: true, Stdout: true, Stderr: !terminal,
	})
	if err != nil {
		return "", fmt.Errorf("run command in container %s: %w", id, gone(err))
	}
	return resp.GetUrl(), nil
}
