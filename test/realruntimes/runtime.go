// Package realruntimes starts real container runtimes without a kubelet, for tests: `hack/test.sh runtimes` builds them, and runs such tests in
// namespaces of their own.
package realruntimes

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PauseImage is in an archive of the directory that IMAGES names.
const PauseImage = "localhost/pause:1"

// Runtime is a container runtime with files, sockets and processes of its own, which end with the test.
type Runtime struct {
	criv1.RuntimeServiceClient

	dir, socket string
	command     func(ctx context.Context) *exec.Cmd
	stop        context.CancelFunc
	ended       chan struct{}
}

// Path returns the path of one of the runtime's files: its NRI socket is nri.sock.
func (r *Runtime) Path(name string) string { return filepath.Join(r.dir, name) }

// Endpoint returns where the runtime serves CRI.
func (r *Runtime) Endpoint() string { return "unix://" + r.Path(r.socket) }

// loopback has the test's network namespace reach itself.
func loopback(t *testing.T) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("set lo up: %v\n%s", err, out)
	}
}

// newRuntime returns a Runtime that does not run yet.
func newRuntime(t *testing.T, socket string) *Runtime {
	t.Helper()
	loopback(t)
	dir, err := os.MkdirTemp("", "runtime") //nolint:usetesting // its names are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	removeCgroups(t)
	r := &Runtime{dir: dir, socket: socket}
	conn, err := grpc.NewClient(r.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r.RuntimeServiceClient = criv1.NewRuntimeServiceClient(conn)
	return r
}

// removeCgroups removes, when the test ends, the control groups in which containerd and CRI-O put containers whose pods name none, unless they were there.
func removeCgroups(t *testing.T) {
	t.Helper()
	list := func() (all []string) {
		for _, name := range []string{"k8s.io", "crio"} {
			found, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
			all = append(all, found...)
		}
		return all
	}
	if len(list()) > 0 {
		return
	}
	t.Cleanup(func() {
		for _, dir := range list() {
			if out, err := exec.Command("find", dir, "-depth", "-type", "d", "-delete").CombinedOutput(); err != nil {
				t.Errorf("remove %s: %v\n%s", dir, err, out)
			}
		}
	})
}

// run starts the runtime, and ends it with the test.
func (r *Runtime) run(t *testing.T) {
	t.Helper()
	r.start(t)
	t.Cleanup(func() {
		r.end()
		if t.Failed() {
			t.Logf("the runtime's log ends with:\n%s", r.lastWords())
		}
	})
}

// start returns when the runtime answers.
func (r *Runtime) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := r.command(ctx)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second // shims keep its output open
	log, err := os.Create(r.Path("log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close() //nolint:errcheck // the program has its own
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.stop, r.ended = cancel, make(chan struct{})
	go func() { _ = cmd.Wait(); close(r.ended) }()
	deadline := time.After(2 * time.Minute)
	for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
		// The status is answered once the runtime has read its records.
		if _, err = r.Status(t.Context(), &criv1.StatusRequest{}); err == nil {
			return
		}
		select {
		case <-r.ended:
			t.Fatalf("the runtime has ended:\n%s", r.lastWords())
		case <-deadline:
			t.Fatalf("the runtime does not answer: %v", err)
		default:
		}
	}
}

func (r *Runtime) end() {
	r.stop()
	<-r.ended
}

// Restart returns when the runtime answers again.
func (r *Runtime) Restart(t *testing.T) {
	t.Helper()
	r.end()
	r.start(t)
}

// lastWords returns the end of the runtime's log.
func (r *Runtime) lastWords() string {
	text, _ := os.ReadFile(r.Path("log"))
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}
