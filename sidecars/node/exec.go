package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/runtime/container"
)

// Exec is a command to run in a proxy that the node's agent runs.
type Exec struct {
	Namespace, Pod string
	Command        []string
	// Timeout is how long the command may take; 0 is for ever, and only for one with Input.
	Timeout time.Duration
	// Input is what the command reads, or nil. With it, output is printed as it comes.
	Input io.Reader
	// Terminal gives a command with Input a terminal of these sizes, or none if it is nil.
	Terminal <-chan TerminalSize
}

// TerminalSize is a terminal's size, in characters.
type TerminalSize = remotecommand.TerminalSize

// Run runs the command, prints what it prints, and returns its exit code. Without Input it prints once the command has ended. conn is the
// container runtime's.
func (e Exec) Run(ctx context.Context, conn grpc.ClientConnInterface, out, errOut io.Writer) (code int, err error) {
	runtime := container.New(conn, DefaultLogRoot)
	all, err := runtime.List(ctx, "")
	if err != nil {
		return 0, err
	}
	id := e.newest(all)
	if id == "" {
		return 0, fmt.Errorf("no proxy of the pod %s/%s runs on this node: `kubectl get managedproxies -n %s %s -o wide` names the pod's node and profile; a shared proxy is a pod in the agent's namespace with the label %s=PROFILE",
			e.Namespace, e.Pod, e.Namespace, e.Pod, sidecar.LabelShared)
	}
	if e.Input != nil {
		return e.stream(ctx, runtime, id, out, errOut)
	}
	printed, err := runtime.Exec(ctx, id, e.Command, e.Timeout)
	if err != nil {
		return 0, err
	}
	_, errWrite := out.Write(printed.Out)
	_, errWriteErr := errOut.Write(printed.Err)
	return int(printed.Code), errors.Join(errWrite, errWriteErr)
}

// stream runs the command over the runtime's streaming server, which listens on the node's loopback.
func (e Exec) stream(ctx context.Context, runtime *container.Runtime, id string, out, errOut io.Writer) (code int, err error) {
	if e.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, e.Timeout, fmt.Errorf("it has not ended within %s", e.Timeout))
		defer cancel()
	}
	text, err := runtime.ExecURL(ctx, id, e.Command, e.Terminal != nil)
	if err != nil {
		return 0, err
	}
	address, err := url.Parse(text)
	if err != nil {
		return 0, fmt.Errorf("the runtime's address for the command: %w", err)
	}
	executor, err := remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, address)
	if err != nil {
		return 0, fmt.Errorf("connect to the runtime at %s: %w", address.Host, err)
	}
	options := remotecommand.StreamOptions{Stdin: e.Input, Stdout: out, Stderr: errOut}
	if e.Terminal != nil {
		options.Stderr, options.Tty, options.TerminalSizeQueue = nil, true, sizes(e.Terminal)
	}
	err = executor.StreamWithContext(ctx, options)
	var exit exec.CodeExitError
	switch {
	case errors.As(err, &exit):
		return exit.Code, nil
	case ctx.Err() != nil:
		return 0, fmt.Errorf("run command in container %s: %w", id, context.Cause(ctx))
	case err != nil:
		return 0, fmt.Errorf("run command in container %s: %w", id, err)
	}
	return 0, nil
}

// sizes is a channel as the queue that the streaming client reads.
type sizes <-chan TerminalSize

// Next returns the next size, or nil after the last one.
func (s sizes) Next() *TerminalSize {
	size, ok := <-s
	if !ok {
		return nil
	}
	return &size
}

// newest returns the container of the pod's newest proxy that runs, or "". That of a deleted pod of the same name, which still ends, is older.
func (e Exec) newest(all []sidecar.Container) (id string) {
	var made time.Time
	for _, c := range all {
		if c.PodNamespace == e.Namespace && c.PodName == e.Pod && c.State == sidecar.Running && (id == "" || c.Created.After(made)) {
			id, made = c.ID, c.Created
		}
	}
	return id
}
