package realruntimes

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// containerdConfig is read by containerd 1.7 and, as an older format, by 2.x. %[1]s is the directory that holds everything of this containerd.
const containerdConfig = `version = 2
root = '%[1]s/root'
state = '%[1]s/state'
[grpc]
  address = '%[1]s/containerd.sock'
[plugins.'io.containerd.grpc.v1.cri']
  sandbox_image = '` + PauseImage + `'
  disable_apparmor = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[plugins.'io.containerd.grpc.v1.cri'.cni]
  conf_dir = '%[1]s/cni'
  bin_dir = '%[2]s/cni'
[plugins.'io.containerd.grpc.v1.cri'.containerd]
  snapshotter = 'native'
[plugins.'io.containerd.nri.v1.nri']
  disable = false
  socket_path = '%[1]s/nri.sock'
  plugin_request_timeout = '10s'
  plugin_path = '%[1]s/none'
  plugin_config_path = '%[1]s/none'
`

// Containerds calls a test for each directory with a containerd in CONTAINERDS, the pinned release first, by the release's name.
func Containerds(t *testing.T, test func(t *testing.T, programs string)) {
	t.Helper()
	releases := filepath.SplitList(os.Getenv("CONTAINERDS"))
	if len(releases) == 0 {
		t.Skip("CONTAINERDS lists no directories with containerd: hack/test.sh runtimes")
	}
	for _, programs := range releases {
		out, err := exec.CommandContext(t.Context(), filepath.Join(programs, "containerd"), "--version").Output()
		words := strings.Fields(string(out))
		if err != nil || len(words) < 3 {
			t.Fatalf("containerd --version says %q, error %v", out, err)
		}
		t.Run(words[2], func(t *testing.T) { test(t, programs) }) // behind the program's name and its repository
	}
}

// StartContainerd starts a containerd, whose plugins of CNI are the pinned ones. ctr and runc come from PATH.
func StartContainerd(t *testing.T, programs string) *Runtime {
	t.Helper()
	r := newRuntime(t, "containerd.sock")
	plugins := filepath.SplitList(os.Getenv("CONTAINERDS"))[0]
	if err := os.WriteFile(r.Path("config.toml"), fmt.Appendf(nil, containerdConfig, r.dir, plugins), 0o600); err != nil {
		t.Fatal(err)
	}
	r.command = func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, filepath.Join(programs, "containerd"), "--config", r.Path("config.toml"))
		cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"))
		return cmd
	}
	r.run(t)
	ctr := exec.CommandContext(t.Context(), "ctr", "--address", r.Path("containerd.sock"), "--namespace", "k8s.io",
		"images", "import", "--local", "--snapshotter", "native", filepath.Join(os.Getenv("IMAGES"), "pause.tar"))
	if out, err := ctr.CombinedOutput(); err != nil {
		t.Fatalf("import the pause image: %v\n%s", err, out)
	}
	return r
}
