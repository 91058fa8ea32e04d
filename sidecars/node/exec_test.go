package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/utils/exec"
)

// executor is a runtime in whose containers commands print the container and themselves.
type executor struct {
	criv1.UnimplementedRuntimeServiceServer

	containers []*criv1.Container
	fails      error
	streams    streaming.Server
}

func (e *executor) Exec(_ context.Context, r *criv1.ExecRequest) (*criv1.ExecResponse, error) {
	if e.fails != nil {
		return nil, e.fails
	}
	return e.streams.GetExec(r)
}

func (e *executor) Version(context.Context, *criv1.VersionRequest) (*criv1.VersionResponse, error) {
	return &criv1.VersionResponse{RuntimeName: "containerd", RuntimeApiVersion: "v1"}, nil
}

func (e *executor) ListContainers(context.Context, *criv1.ListContainersRequest) (*criv1.ListContainersResponse, error) {
	return &criv1.ListContainersResponse{Containers: e.containers}, nil
}

func (e *executor) ExecSync(_ context.Context, r *criv1.ExecSyncRequest) (*criv1.ExecSyncResponse, error) {
	return &criv1.ExecSyncResponse{Stdout: []byte(r.GetContainerId() + ": " + strings.Join(r.GetCmd(), " ")), Stderr: []byte("warned"), ExitCode: 7}, e.fails
}

func proxyContainer(id, pod string, epoch uint32, state criv1.ContainerState) *criv1.Container {
	return &criv1.Container{Id: id, Metadata: &criv1.ContainerMetadata{Attempt: epoch}, CreatedAt: 100 + int64(epoch), State: state, Labels: map[string]string{
		"pod-network-controller.istio.io/managed-proxy": "true", "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.name": pod,
	}}
}

func TestExec_severalProxies_runsInTheNewest(t *testing.T) {
	const running, exited = criv1.ContainerState_CONTAINER_RUNNING, criv1.ContainerState_CONTAINER_EXITED
	former := proxyContainer("former", "cart-1", 9, running) // of a deleted pod of the same name
	former.CreatedAt = 1
	e := &executor{containers: []*criv1.Container{
		former, proxyContainer("other", "cart-2", 9, running), proxyContainer("old", "cart-1", 2, running), proxyContainer("new", "cart-1", 3, running),
		proxyContainer("ended", "cart-1", 4, exited), proxyContainer("gone", "cart-3", 0, exited),
	}}
	conn := serveRuntime(t, e)
	for name, c := range map[string]struct {
		pod   string
		fails error
		out   string
		want  string // of the error
	}{
		"the newest that runs":   {"cart-1", nil, "new: ls /run", ""},
		"one that has ended":     {"cart-3", nil, "", "no proxy of the pod shop/cart-3 runs on this node"},
		"none":                   {"cart", nil, "", "names the pod's node"},
		"what cannot be started": {"cart-1", grpcstatus.Error(codes.Unknown, "no such file"), "", "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			e.fails = c.fails
			var out, errOut bytes.Buffer
			code, err := Exec{
				Namespace: "shop", Pod: c.pod, Command: []string{"ls", "/run"}, Timeout: time.Second,
			}.Run(t.Context(), conn, &out, &errOut)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q in it", err, c.want)
				}
				return
			}
			if err != nil || code != 7 || out.String() != c.out || errOut.String() != "warned" {
				t.Errorf("exit code %d, %q and %q, error %v", code, out.String(), errOut.String(), err)
			}
		})
	}
}

// serveRuntime returns a connection to a runtime.
func serveRuntime(t *testing.T, runtime criv1.RuntimeServiceServer) *grpc.ClientConn {
	t.Helper()
	return serveCRI(t, func(server *grpc.Server) { criv1.RegisterRuntimeServiceServer(server, runtime) })
}

// serveCRI returns a connection to what is registered.
func serveCRI(t *testing.T, register func(*grpc.Server)) *grpc.ClientConn {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "cri.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	register(server)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// talker has commands read what they are given. It is containers' side of the runtime's streaming server.
type talker struct{ streaming.Runtime }

// Exec prints the container, the command, the terminal's second size if there is one, and the input, and fails as it is told.
func (talker) Exec(
	ctx context.Context, id string, command []string, in io.Reader, out, errOut io.WriteCloser, terminal bool, sizes <-chan remotecommand.TerminalSize,
) error {
	fmt.Fprintf(out, "%s: %s\n", id, strings.Join(command, " "))
	if terminal {
		<-sizes
		size := <-sizes
		fmt.Fprintf(out, "%dx%d\n", size.Width, size.Height)
	} else {
		fmt.Fprint(errOut, "warned")
	}
	switch command[0] {
	case "hang":
		<-ctx.Done()
	case "fail":
		return exec.CodeExitError{Code: 7, Err: errors.New("exit 7")}
	case "miss":
		return errors.New("no such file")
	}
	_, err := io.Copy(out, in)
	return err
}

func TestExec_input_isPassedOn(t *testing.T) {
	web := httptest.NewUnstartedServer(nil)
	config := streaming.DefaultConfig
	config.Addr = web.Listener.Addr().String()
	streams, err := streaming.NewServer(config, talker{})
	if err != nil {
		t.Fatal(err)
	}
	web.Config.Handler = streams
	web.Start()
	t.Cleanup(web.Close)
	e := &executor{streams: streams, containers: []*criv1.Container{proxyContainer("new", "cart-1", 3, criv1.ContainerState_CONTAINER_RUNNING)}}
	conn := serveRuntime(t, e)
	for name, c := range map[string]struct {
		command     string
		terminal    bool
		timeout     time.Duration
		fails       error
		code        int
		out, errOut string
		want        string // of the error
	}{
		"until the input ends":         {command: "cat", out: "new: cat\nline 1\nline 2\n", errOut: "warned"},
		"with a terminal":              {command: "cat", terminal: true, out: "new: cat\n80x25\nline 1\nline 2\n"},
		"it fails":                     {command: "fail", code: 7, out: "new: fail\n", errOut: "warned"},
		"it cannot be started":         {command: "miss", want: "no such file"},
		"it takes too long":            {command: "hang", timeout: 100 * time.Millisecond, want: "has not ended within 100ms"},
		"the container is not running": {command: "cat", fails: grpcstatus.Error(codes.NotFound, "no such container"), want: "no such container"},
	} {
		t.Run(name, func(t *testing.T) {
			e.fails = c.fails
			call := Exec{
				Namespace: "shop", Pod: "cart-1", Command: []string{c.command}, Timeout: c.timeout,
				Input: strings.NewReader("line 1\nline 2\n"),
			}
			if c.terminal {
				sizes := make(chan TerminalSize, 2)
				sizes <- TerminalSize{Width: 10, Height: 20}
				sizes <- TerminalSize{Width: 80, Height: 25}
				close(sizes)
				call.Terminal = sizes
			}
			var out, errOut bytes.Buffer
			code, err := call.Run(t.Context(), conn, &out, &errOut)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q in it", err, c.want)
				}
				return
			}
			if err != nil || code != c.code || out.String() != c.out || errOut.String() != c.errOut {
				t.Errorf("exit code %d, %q and %q, error %v", code, out.String(), errOut.String(), err)
			}
		})
	}
}
