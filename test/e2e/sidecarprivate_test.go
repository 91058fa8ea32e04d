package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// tmpfsMagic is the number by which the kernel calls it.
const tmpfsMagic = 0x01021994

// proxySearch is how an application looks for its proxy's secrets: by their path, by that of each process that it sees, by their names, and by what is in them.
const proxySearch = `id; cat /run/sidecar-secrets/*/* /proc/[0-9]*/root/run/sidecar-secrets/*/* 2>/dev/null
find / -path '/proc/*' -prune -o -path '/sys/*' -prune -o -name '*tls*key*' -print 2>/dev/null
grep -rl 'PRIVATE KEY' /run /tmp /dev/shm /var /etc /proc/[0-9]*/environ 2>/dev/null; true`

// firstLineOf is the first line of a PEM block's content.
func firstLineOf(block []byte) string {
	lines := strings.SplitN(string(block), "\n", 3)
	return lines[1]
}

// wantPrivate wants a proxy's secrets to be in memory, and to be its user's alone.
func wantPrivate(t *testing.T, dir string) {
	t.Helper()
	const user = 1337
	files := 0
	must(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		want := map[fs.FileMode]fs.FileMode{0: 0o400, fs.ModeDir: fs.ModeDir | 0o700, fs.ModeSymlink: fs.ModeSymlink | 0o777}[info.Mode().Type()]
		owner := info.Sys().(*syscall.Stat_t)
		if info.Mode() != want || info.Mode().Type() != fs.ModeSymlink && (owner.Uid != user || owner.Gid != user) {
			t.Errorf("%s: mode %s of %d:%d, want %s of %d", path, info.Mode(), owner.Uid, owner.Gid, want, user)
		}
		if info.Mode().IsRegular() {
			files++
		}
		return nil
	}))
	if !onTmpfs(dir) || files == 0 {
		t.Errorf("%s: %d files; want some, in a tmpfs", dir, files)
	}
}

// wantInMemory wants all that a process sees mounted below a path to be read-only and in memory, and returns how much that is.
func wantInMemory(t *testing.T, pid int, below string) (n int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	must(t, err)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if !strings.HasPrefix(fields[4]+"/", below) {
			continue
		}
		n++
		kind := fields[slices.Index(fields, "-")+1]
		if kind != "tmpfs" || !slices.Contains(strings.Split(fields[5], ","), "ro") {
			t.Errorf("mounted writable, or not in memory: %s", line)
		}
	}
	return n
}

func onTmpfs(path string) bool {
	var in syscall.Statfs_t
	return syscall.Statfs(path, &in) == nil && in.Type == tmpfsMagic
}

// wantNotOnDisk wants no file that the node's agent, kubelet and runtime keep on its disk to have a secret.
func (c *cluster) wantNotOnDisk(t *testing.T, secret []byte) {
	t.Helper()
	files := 0
	for _, dir := range []string{"var/log", "var/lib/kubelet", "var/lib/containerd/io.containerd.metadata.v1.bolt", "var/lib/containers/storage/overlay-containers"} {
		must(t, filepath.WalkDir(filepath.Join(c.node.NodeRoot, dir), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist): // pods come and go
				return nil
			case err != nil:
				return err
			case entry.IsDir() && onTmpfs(path):
				return fs.SkipDir
			case !entry.Type().IsRegular():
				return nil
			}
			text, err := os.ReadFile(path) //nolint:gosec // of the test's own node
			if bytes.Contains(text, secret) {
				t.Errorf("%s has the secret", path)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			files++
			return err
		}))
	}
	if files == 0 {
		t.Error("no file was looked at")
	}
}
