package nri

import (
	"context"
	"fmt"
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

// pauseImage is in the archive that PAUSE_IMAGE names.
const pauseImage = "localhost/pause:1"

// containerdConfig is read by containerd 1.7 and, as an older format, by 2.x. %[1]s is the directory that holds everything of this containerd.
const containerdConfig = `version = 2
root = '%[1]s/root'
state = '%[1]s/state'
[grpc]
  address = '%[1]s/containerd.sock'
[plugins.'io.containerd.grpc.v1.cri']
  sandbox_image = '` + pauseImage + `'
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins.'io.containerd.grpc.v1.cri'.cni]
  conf_dir = '%[1]s/none'
[plugins.'io.containerd.grpc.v1.cri'.containerd]
  snapshotter = 'native'
[plugins.'io.containerd.nri.v1.nri']
  disable = false
  socket_path = '%[1]s/nri.sock'
  plugin_path = '%[1]s/none'
  plugin_config_path = '%[1]s/none'
`

// containerd is a container runtime with files, sockets and processes of its own. ctr and runc come from PATH.
type containerd struct {
	programs, dir string
	runtime       criv1.RuntimeServiceClient
	stop          context.CancelFunc
	ended         chan struct{}
}

func containerdVersion(t *testing.T, programs string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(programs, "containerd"), "--version").Output()
	if words := strings.Fields(string(out)); err == nil && len(words) > 2 {
		return words[2] // behind the program's name and its repository
	}
	t.Fatalf("containerd --version says %q, error %v", out, err)
	return ""
}

func startContainerd(t *testing.T, programs string) *containerd {
	t.Helper()
	d := &containerd{programs: programs, dir: socketDir(t)}
	if err := os.WriteFile(d.path("config.toml"), fmt.Appendf(nil, containerdConfig, d.dir), 0o600); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+d.path("containerd.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	d.runtime = criv1.NewRuntimeServiceClient(conn)
	d.start(t)
	t.Cleanup(func() {
		d.end()
		if t.Failed() {
			t.Logf("containerd's log ends with:\n%s", d.lastWords())
		}
	})
	ctr := exec.CommandContext(t.Context(), "ctr", "--address", d.path("containerd.sock"), "--namespace", "k8s.io",
		"images", "import", "--local", "--snapshotter", "native", os.Getenv("PAUSE_IMAGE"))
	if out, err := ctr.CombinedOutput(); err != nil {
		t.Fatalf("import the pause image: %v\n%s", err, out)
	}
	return d
}

func (d *containerd) path(name string) string { return filepath.Join(d.dir, name) }

// start returns when the runtime answers.
func (d *containerd) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, filepath.Join(d.programs, "containerd"), "--config", d.path("config.toml"))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second // shims keep its output open
	cmd.Env = append(os.Environ(), "PATH="+d.programs+":"+os.Getenv("PATH"))
	log, err := os.Create(d.path("log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close() //nolint:errcheck // the program has its own
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.stop, d.ended = cancel, make(chan struct{})
	go func() { _ = cmd.Wait(); close(d.ended) }()
	deadline := time.After(30 * time.Second)
	for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
		// The status is answered once the runtime has read its records.
		if _, err = d.runtime.Status(t.Context(), &criv1.StatusRequest{}); err == nil {
			return
		}
		select {
		case <-d.ended:
			t.Fatalf("containerd has ended:\n%s", d.lastWords())
		case <-deadline:
			t.Fatalf("containerd does not answer: %v", err)
		default:
		}
	}
}

func (d *containerd) end() {
	d.stop()
	<-d.ended
}

func (d *containerd) restart(t *testing.T) {
	t.Helper()
	d.end()
	d.start(t)
}

// lastWords returns the end of the runtime's log.
func (d *containerd) lastWords() string {
	text, _ := os.ReadFile(d.path("log"))
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}
