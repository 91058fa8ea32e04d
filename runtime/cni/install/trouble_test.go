package install

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
)

func TestInstall_unchainableNetwork_saysWhy(t *testing.T) {
	cases := map[string]struct {
		prepare func(t *testing.T, n *node)
		want    string
	}{
		"a CNI version that is too old": {func(t *testing.T, n *node) {
			t.Helper()
			n.put(t, "10-a.conflist", strings.Replace(plain, "1.0.0", "0.2.0", 1))
		}, `"0.2.0"`},
		"no CNI version": {func(t *testing.T, n *node) {
			t.Helper()
			n.put(t, "10-a.conflist", strings.Replace(plain, "cniVersion", "x", 1))
		}, "CNI version"},
		"a CNI version that is too new": {func(t *testing.T, n *node) {
			t.Helper()
			n.put(t, "10-a.conflist", strings.Replace(plain, `"cniVersion"`, `"cniVersions": ["1.0.0", "2.0.0"], "cniVersion"`, 1))
		}, "2.0.0"},
		"a lone .conf": {func(t *testing.T, n *node) {
			t.Helper()
			n.put(t, "10-a.conf", single)
		}, "10-a.conf is the configuration of one plugin, and none can be chained to it: write it as a list"},
		"a lone .json": {func(t *testing.T, n *node) {
			t.Helper()
			n.put(t, "10-a.json", single)
		}, "10-a.json is the configuration of one plugin"},
		"a .conf before a list of the same name": {func(t *testing.T, n *node) {
			t.Helper()
			n.put(t, "10-a.conf", single)
			n.put(t, "10-a.conflist", plain)
		}, "10-a.conf is the configuration of one plugin"},
		"plugins in a directory": {func(t *testing.T, n *node) {
			t.Helper()
			n.put(t, "10-a.conflist", `{"cniVersion":"1.0.0","name":"dir"}`)
			if err := os.Mkdir(filepath.Join(n.conf, "dir"), 0o755); err != nil {
				t.Fatal(err)
			}
		}, "has its plugins in the directory"},
		"a symbolic link to nothing": {func(t *testing.T, n *node) {
			t.Helper()
			if err := os.Symlink("/nonexistent/10-a.conflist", filepath.Join(n.conf, "10-a.conflist")); err != nil {
				t.Fatal(err)
			}
		}, "symbolic link"},
		"a file that is too large": {func(t *testing.T, n *node) {
			t.Helper()
			n.put(t, "10-a.conflist", plain)
			if err := os.Truncate(filepath.Join(n.conf, "10-a.conflist"), maxConfig+1); err != nil {
				t.Fatal(err)
			}
		}, "larger than"},
		"no binary":                {func(t *testing.T, n *node) { t.Helper(); n.source += "-gone" }, "no such file"},
		"no directory of binaries": {func(t *testing.T, n *node) { t.Helper(); n.bin += "-gone" }, "must exist and be writable"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			c.prepare(t, n)
			n.put(t, "99-next.conflist", plain) // the runtime does not use it, so it must not be chained to
			before := n.tree(t)
			i := n.installer(t)
			if err := i.Install(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if err := i.Check(); err == nil {
				t.Error("Check succeeded")
			}
			if diff := cmp.Diff(before, n.tree(t)); diff != "" {
				t.Errorf("written (-before +after):\n%s", diff)
			}
		})
	}
}

// A list may have plugins of its own and more in a directory, which run behind ours.
func TestInstall_directoryBesideTheList_runsBehindOurs(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-a.conflist", `{"cniVersion":"1.1.0","name":"dir","plugins":[{"type":"bridge"}]}`)
	if err := os.Mkdir(filepath.Join(n.conf, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.put(t, "dir/20-more.conf", `{"type":"portmap"}`)
	if err := n.installer(t).Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromFile(filepath.Join(n.conf, "10-a.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, p := range list.Plugins {
		kinds = append(kinds, p.Network.Type)
	}
	if d := cmp.Diff([]string{"bridge", "istio-pod-network-cni", "portmap"}, kinds); d != "" {
		t.Error(d)
	}
}

func TestInstall_readOnlyDirectory_isNamed(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-kc.conflist", plain)
	readOnly := func(dir string, mode os.FileMode) {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	readOnly(filepath.Dir(filepath.Dir(n.source)), 0o755) // a test's directory is its user's alone
	wantRefusal := func(dir, want string) {
		t.Helper()
		readOnly(dir, 0o555)
		defer readOnly(dir, 0o755)
		asNobody(t, func() {
			if err := n.installer(t).Install(t.Context()); !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
		if got := n.get(t, "10-kc.conflist"); got != plain {
			t.Errorf("the chain names a plugin that is not there:\n%s", got)
		}
	}
	wantRefusal(n.bin, "put the plugin into "+n.bin)
	n.write(t, filepath.Join(n.bin, "istio-pod-network-cni"), "#!program")
	readOnly(filepath.Join(n.bin, "istio-pod-network-cni"), 0o755)
	wantRefusal(n.conf, "chain the plugin to "+filepath.Join(n.conf, "10-kc.conflist"))
	readOnly(n.bin, 0o555) // with the binary in place already it is not written to
	asNobody(t, func() {
		if err := n.installer(t).putBinary(); err != nil {
			t.Error(err)
		}
	})
	readOnly(n.bin, 0o755)
}

func TestInstall_linkedFile_keepsModeAndOwner(t *testing.T) {
	n := newNode(t)
	elsewhere := filepath.Join(filepath.Dir(n.conf), "real.conflist")
	n.write(t, elsewhere, plain)
	if err := os.Chmod(elsewhere, 0o640); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := os.Chown(elsewhere, 12, 34); err != nil {
			t.Fatal(err)
		}
	}
	was, _ := os.Stat(elsewhere)
	if err := os.Symlink("../real.conflist", filepath.Join(n.conf, "10-kc.conflist")); err != nil {
		t.Fatal(err)
	}
	i := n.installer(t)
	if err := i.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(elsewhere)
	if err != nil || info.Mode() != was.Mode() {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	is, want := info.Sys().(*syscall.Stat_t), was.Sys().(*syscall.Stat_t)
	if is.Uid != want.Uid || is.Gid != want.Gid {
		t.Errorf("belongs to %d:%d, want %d:%d", is.Uid, is.Gid, want.Uid, want.Gid)
	}
	if link, err := os.Readlink(filepath.Join(n.conf, "10-kc.conflist")); err != nil || link != "../real.conflist" || n.get(t, "10-kc.conflist") != chained {
		t.Errorf("link %q, %v, %s", link, err, n.get(t, "10-kc.conflist"))
	}
	if err := i.Uninstall(); err != nil || n.get(t, "10-kc.conflist") != plain {
		t.Errorf("%v, %s", err, n.get(t, "10-kc.conflist"))
	}
}

// A FIFO is no configuration. Without a writer, only a reader that does not wait for one gets an answer.
func TestRead_fifo_isInvalid(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := read(fifo); !isInvalid(err) {
		t.Errorf("got %v, want why it is invalid", err)
	}
}

func TestInstall_noNetwork_waits(t *testing.T) {
	n := newNode(t)
	if err := os.Remove(n.conf); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := n.installer(t).Install(ctx); !errors.Is(err, ErrNoNetwork) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- n.installer(t).Install(t.Context()) }()
	eventually(t, "the installer waits", func() bool { return n.count(Waiting) == 2 })
	if err := os.Mkdir(n.conf, 0o755); err != nil {
		t.Fatal(err)
	}
	n.put(t, "10-kc.conflist", plain)
	if err := <-done; err != nil || n.get(t, "10-kc.conflist") != chained {
		t.Errorf("%v, %s", err, n.get(t, "10-kc.conflist"))
	}
}
