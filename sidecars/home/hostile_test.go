package home

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/test/kerneltest"
)

// roleVariable tells the test's program, started again as a container's process, which one it is. The value is a role and an argument.
const roleVariable = "SIDECARS_TEST_ROLE"

// defaultCapabilities are what container runtimes leave a root process.
const defaultCapabilities = "+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,+setfcap,+setpcap,+net_bind_service,+sys_chroot,+kill,+audit_write"

// containerScript makes a root file system of its own, as a runtime does, and starts the program there. MOUNTS has a line for each mount of
// the container: the node's path, the container's, ro or rw.
const containerScript = `
mount --make-rprivate /
mount -t tmpfs tmpfs "$NEW"
for dir in usr bin lib lib64; do [ -d /$dir ] && mkdir -p "$NEW/$dir" && mount --rbind -o ro /$dir "$NEW/$dir"; done
mkdir "$NEW/proc" "$NEW/tmp" "$NEW/old" "$NEW/dev"
mount -t proc proc "$NEW/proc"
: >"$NEW/program" && mount --bind "$PROGRAM" "$NEW/program"
: >"$NEW/dev/null" && mount --bind /dev/null "$NEW/dev/null"
printf %s "$MOUNTS" | while read -r from to mode; do
  mkdir -p "$NEW$to"
  mount --bind "$from" "$NEW$to"
  [ "$mode" = rw ] || mount -o remount,bind,ro "$NEW$to"
done
cd "$NEW"
pivot_root . old
umount -l old
exec setpriv --reuid "$ID" --regid "$ID" --clear-groups --bounding-set "-all$CAPABILITIES" --inh-caps -all --no-new-privs /program -test.run '^TestRole$'
`

// process is one that a test talks to, line by line. It ends when in is closed.
type process struct {
	*exec.Cmd

	in  io.WriteCloser
	out *bufio.Reader
}

// startContainer starts the test's program with a mount and a PID namespace of its own.
func startContainer(t *testing.T, role string, id int, capabilities string, mounts []sidecar.Mount) process {
	t.Helper()
	for _, program := range []string{"mount", "pivot_root", "setpriv"} {
		kerneltest.ProgramPath(t, program)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for _, m := range mounts {
		fmt.Fprintln(&lines, m.Host, m.Container, map[bool]string{true: "ro", false: "rw"}[m.ReadOnly])
	}
	p := process{Cmd: exec.CommandContext(t.Context(), "sh", "-euc", containerScript)}
	p.Env = append(os.Environ(), roleVariable+"="+role, "NEW="+t.TempDir(), "PROGRAM="+program, "MOUNTS="+lines.String(), fmt.Sprint("ID=", id),
		"CAPABILITIES="+strings.TrimSuffix(","+capabilities, ","))
	p.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	p.Stderr = os.Stderr
	out, errOut := p.StdoutPipe()
	p.in, err = p.StdinPipe()
	if err := errors.Join(err, errOut, p.Start()); err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	t.Cleanup(func() { _ = p.in.Close(); _ = p.Wait() })
	return p
}

// ask has the process answer one line with another.
func (p process) ask(t *testing.T, line string) string {
	t.Helper()
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		t.Fatal(err)
	}
	answer, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return strings.TrimSpace(answer)
}

// TestRole is no test: it is what the containers of the tests below run.
func TestRole(t *testing.T) {
	role, argument, _ := strings.Cut(os.Getenv(roleVariable), " ")
	if role == "" {
		return
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		switch role {
		case "proxy":
			fmt.Fprintln(os.Stdout, proxySays(lines.Text()))
		case "application":
			fmt.Fprintln(os.Stdout, applicationFinds(lines.Text(), argument))
		case "swapper":
			fmt.Fprintln(os.Stdout, startSwapping(lines.Text(), argument))
		}
	}
	os.Exit(0) //nolint:revive // the test's own output is not for the parent
}

func proxySays(question string) string {
	key := profile.PathSecrets + "/tls/tls.key"
	switch question {
	case "read":
		text, err := os.ReadFile(key)
		return fmt.Sprintf("%s %v", text, err)
	case "write":
		return fmt.Sprint(os.WriteFile(key, []byte("mine"), 0o600))
	case "remove":
		return fmt.Sprint(os.Remove(key))
	case "link":
		return fmt.Sprint(os.Symlink("/etc/passwd", profile.PathSecrets+"/tls/..data_tmp"))
	}
	return "what?"
}

// applicationFinds looks for a text in everything that it can get at: its own file system, what /proc shows of processes, and the
// node's paths below each process's root.
func applicationFinds(text, node string) string {
	s := &searcher{text: text}
	s.tree("/")
	s.tree(node)
	processes, err := filepath.Glob("/proc/[0-9]*")
	for _, p := range processes {
		for _, file := range []string{"environ", "cmdline", "mountinfo", "mounts", "maps"} {
			s.look(filepath.Join(p, file))
		}
		for _, below := range []string{"root" + profile.PathSecrets, "cwd" + profile.PathSecrets, "root" + node, "fd"} {
			s.tree(filepath.Join(p, below) + "/")
		}
	}
	return fmt.Sprintf("%d processes, found in %q, error %v", len(processes), s.found, err)
}

// searcher notes the files that have a text.
type searcher struct {
	text  string
	found []string
}

func (s *searcher) look(path string) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return
	}
	if content, err := io.ReadAll(io.LimitReader(f, 1<<16)); err == nil && strings.Contains(string(content), s.text) {
		s.found = append(s.found, path)
	}
}

// tree looks at all files below root but those of the image and of /proc.
func (s *searcher) tree(root string) {
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil //nolint:nilerr // what cannot be read is not found
		case d.IsDir() && (path == "/proc" || path == "/usr" || strings.HasPrefix(path, "/lib")):
			return fs.SkipDir
		}
		s.look(path)
		return nil
	})
}

// newNodeInMemory is a directory in memory with the home of one proxy, as the agent makes it.
func newNodeInMemory(t *testing.T, o Owner) (Homes, Home, secretDir) {
	t.Helper()
	if os.Geteuid() != 0 {
		kerneltest.SkipOrFail(t, "mounts need root; this is uid %d", os.Geteuid())
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=4m"); err != nil {
		kerneltest.SkipOrFail(t, "mount tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	// What keeps others out is the root of the homes, and nothing above it: not the test's directory, and not the one of all its directories.
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	homes, err := NewHomes(filepath.Join(dir, "sidecars"))
	if err != nil {
		t.Fatal(err)
	}
	h := homes.Of(podnet.Key{PodUID: "u1", Sandbox: "s1"})
	d := secretDir{filepath.Join(h.Epoch(0).Secrets(), "tls"), o}
	err = errors.Join(h.Prepare(o), h.Epoch(0).WriteFiles(map[string]string{"haproxy.cfg": "global"}, o), makeDir(h.Epoch(0).Secrets(), o), makeDir(d.path, o))
	if err != nil {
		t.Fatal(err)
	}
	return homes, h, d
}

const marker = "hunter2-marker"

func TestSecrets_hostileUsers_onlyProxyReads(t *testing.T) {
	const id = 1337
	homes, h, d := newNodeInMemory(t, Owner{id, id})
	if err := d.replace(map[string][]byte{"tls.key": []byte(marker + "-1")}, time.Now()); err != nil {
		t.Fatal(err)
	}
	source := v1alpha1.SecretSource{Name: "tls", Secret: &v1alpha1.SecretKeys{}}
	version := &profile.Version{Spec: profile.Spec{Secrets: []v1alpha1.SecretSource{source}}}
	mounts := h.Mounts(profile.Instance{Version: version})
	proxy := startContainer(t, "proxy", id, "", mounts)
	if got := proxy.ask(t, "read"); got != marker+"-1 <nil>" {
		t.Fatalf("the proxy reads %q", got)
	}
	for _, try := range []string{"write", "remove", "link"} {
		if got := proxy.ask(t, try); !strings.Contains(got, "read-only file system") {
			t.Errorf("the proxy can %s: %s", try, got)
		}
	}
	if err := d.replace(map[string][]byte{"tls.key": []byte(marker + "-2")}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if got := proxy.ask(t, "read"); got != marker+"-2 <nil>" {
		t.Errorf("after the rotation the proxy reads %q", got)
	}
	for name, c := range map[string]struct {
		id           int
		capabilities string
	}{
		"root, with a runtime's capabilities": {0, defaultCapabilities}, "root, without": {0, ""}, "a user": {1000, ""}, "the proxy's user": {id, ""},
	} {
		t.Run("an application as "+name, func(t *testing.T) {
			app := startContainer(t, "application "+homes.Root, c.id, c.capabilities, nil)
			if got := app.ask(t, marker); got != "1 processes, found in [], error <nil>" {
				t.Errorf("it sees %s", got)
			}
		})
		t.Run("a process of the node as "+name, func(t *testing.T) { cannotEnter(t, homes.Root, d.path, c.id) })
	}
}

// cannotEnter has a process in the node's own mount namespace try to read by path. Root on the node is not kept out.
func cannotEnter(t *testing.T, root, dir string, id int) {
	t.Helper()
	if id == 0 {
		return
	}
	for _, path := range []string{root, filepath.Dir(dir), filepath.Join(dir, "tls.key"), filepath.Join(dir, dataLink, "tls.key")} {
		cmd := exec.CommandContext(t.Context(), "cat", path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(id), Gid: uint32(id)}}
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "Permission denied") {
			t.Errorf("%s: error %v, %s", path, err, out)
		}
	}
}

// The test above can fail: an application with the proxy's mounts finds the secret.
func TestSecrets_applicationWithMounts_isFound(t *testing.T) {
	const id = 1337
	homes, h, d := newNodeInMemory(t, Owner{id, id})
	if err := d.replace(map[string][]byte{"tls.key": []byte(marker)}, time.Now()); err != nil {
		t.Fatal(err)
	}
	app := startContainer(t, "application "+homes.Root, id, "", []sidecar.Mount{{Host: h.Epoch(0).Secrets(), Container: profile.PathSecrets, ReadOnly: true}})
	if got := app.ask(t, marker); !strings.Contains(got, profile.PathSecrets+"/tls/tls.key") || !strings.Contains(got, "/proc/1/root"+profile.PathSecrets) {
		t.Errorf("it sees %s", got)
	}
}
