package nri

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"
	"github.com/go-logr/logr"
)

// fakeRuntime is the runtime's end of one connection, made by hand: it sends what a runtime of any version would.
type fakeRuntime struct {
	conn       net.Conn
	plugin     api.PluginService
	registered chan *api.RegisterPluginRequest
	answer     chan error // to RegisterPlugin
}

func (r *fakeRuntime) RegisterPlugin(ctx context.Context, req *api.RegisterPluginRequest) (*api.Empty, error) {
	r.registered <- req
	select {
	case err := <-r.answer:
		return &api.Empty{}, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (*fakeRuntime) UpdateContainers(context.Context, *api.UpdateContainersRequest) (*api.UpdateContainersResponse, error) {
	return &api.UpdateContainersResponse{}, nil
}

// accept takes one connection of a plugin and has it registered.
func accept(t *testing.T, l *net.UnixListener) *fakeRuntime {
	t.Helper()
	if err := l.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	r := &fakeRuntime{conn: conn, registered: make(chan *api.RegisterPluginRequest, 1), answer: make(chan error, 1)}
	mux := multiplex.Multiplex(conn, multiplex.WithBlockedRead()) // until both ends of it are open
	t.Cleanup(func() { _ = mux.Close() })
	fromPlugin, err := mux.Listen(multiplex.RuntimeServiceConn)
	if err != nil {
		t.Fatal(err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	api.RegisterRuntimeService(server, r)
	go server.Serve(context.WithoutCancel(t.Context()), fromPlugin) //nolint:errcheck // it ends with the connection
	toPlugin, err := mux.Open(multiplex.PluginServiceConn)
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(toPlugin)
	t.Cleanup(func() { _ = client.Close() })
	r.plugin = api.NewPluginClient(client)
	mux.Unblock()
	select {
	case <-r.registered:
	case <-time.After(10 * time.Second):
		t.Fatal("the plugin does not register")
	}
	return r
}

// configure accepts the plugin, as a runtime without sandboxes does.
func (r *fakeRuntime) configure(t *testing.T, c *api.ConfigureRequest) *api.ConfigureResponse {
	t.Helper()
	r.answer <- nil
	resp, err := r.plugin.Configure(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.plugin.Synchronize(t.Context(), &api.SynchronizeRequest{}); err != nil {
		t.Fatal(err)
	}
	return resp
}

// ask has the plugin asked about a pod.
func (r *fakeRuntime) ask(t *testing.T, pod *api.PodSandbox) error {
	t.Helper()
	_, err := r.plugin.CreateContainer(t.Context(), &api.CreateContainerRequest{Pod: pod, Container: &api.Container{Id: "c"}})
	return err
}

// socketDir has a name that is short enough for a socket.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nri") //nolint:usetesting // its names are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func listen(t *testing.T, socket string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// started is a running hook. Its socket is in a directory of the test unless the configuration names one.
type started struct {
	*Hook
	socket string
	stop   func()
}

func start(t *testing.T, c Config) started {
	t.Helper()
	return startWithin(t, c, startLimit)
}

func startWithin(t *testing.T, c Config, limit time.Duration) started {
	t.Helper()
	if c.Handler == nil {
		c.Handler = &fakeHandler{}
	}
	if c.Socket == "" {
		c.Socket = filepath.Join(socketDir(t), "nri.sock")
	}
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	e.startLimit = limit
	ctx, cancel := context.WithCancel(logr.NewContext(t.Context(), logr.Discard()))
	done := make(chan error, 1)
	go func() { done <- e.Start(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return started{Hook: e, socket: c.Socket, stop: stop}
}

// within waits up to 5 s for a condition.
func within(t *testing.T, what string, condition func() bool) {
	t.Helper()
	began := time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		if time.Since(began) > 5*time.Second {
			t.Fatalf("timed out: %s", what)
		}
		<-tick.C
	}
}
