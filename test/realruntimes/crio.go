package realruntimes

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"testing"
)

// crioConfig has the directory of everything of this CRI-O as %[1]s, the registry as %[2]s, CRI-O's programs as %[3]s, other programs' as %[4]s.
const crioConfig = `[crio]
root = "%[1]s/root"
runroot = "%[1]s/run"
storage_driver = "vfs"
log_dir = "%[1]s/logs"
version_file = "%[1]s/version"
clean_shutdown_file = ""
[crio.api]
listen = "%[1]s/crio.sock"
stream_address = "127.0.0.1"
stream_port = "0"
[crio.runtime]
cgroup_manager = "cgroupfs"
drop_infra_ctr = true
conmon_cgroup = "pod"
default_runtime = "runc"
pinns_path = "%[3]s/pinns"
namespaces_dir = "%[1]s/namespaces"
container_exits_dir = "%[1]s/exits"
container_attach_socket_dir = "%[1]s"
apparmor_profile = "unconfined"
[crio.runtime.runtimes.runc]
runtime_path = "%[4]s/runcfit"
runtime_type = "oci"
runtime_root = "%[1]s/runc"
monitor_path = "/usr/bin/conmon"
monitor_cgroup = "pod"
monitor_env = ["PATH=%[5]s"]
[crio.image]
pause_image = "%[2]s"
pause_command = "/pause"
signature_policy = "%[1]s/policy.json"
[crio.network]
network_dir = "%[1]s/cni"
plugin_dirs = ["%[6]s/cni"]
[crio.nri]
enable_nri = true
nri_listen = "%[1]s/nri.sock"
nri_plugin_request_timeout = "10s"
nri_plugin_dir = "%[1]s/none"
nri_plugin_config_dir = "%[1]s/none"
`

// StartCRIO starts a CRI-O of the directory that CRIO names, which pulls its pause image.
func StartCRIO(t *testing.T, pause string) *Runtime {
	t.Helper()
	programs, tools := os.Getenv("CRIO"), filepath.Join(os.Getenv("IMAGES"), "bin")
	r := newRuntime(t, "crio.sock")
	text := fmt.Appendf(nil, crioConfig, r.dir, pause, programs, tools, os.Getenv("PATH"), filepath.SplitList(os.Getenv("CONTAINERDS"))[0])
	const registries = ".config/containers/registries.conf" // of a home directory
	if err := os.MkdirAll(filepath.Dir(r.Path(registries)), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"crio.conf": text, "policy.json": []byte(`{"default": [{"type": "insecureAcceptAnything"}]}`),
		registries: fmt.Appendf(nil, "[[registry]]\nlocation = %q\ninsecure = true\n", path.Dir(pause)),
	} {
		if err := os.WriteFile(r.Path(name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.command = func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, filepath.Join(programs, "crio"), "--config="+r.Path("crio.conf"), "--config-dir="+r.Path("none"))
		cmd.Env = append(os.Environ(), "HOME="+r.dir)
		return cmd
	}
	r.run(t)
	return r
}
