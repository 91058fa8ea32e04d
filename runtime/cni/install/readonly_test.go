package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// readOnlyBin makes the directory of binaries read-only for installers that are made from now on, as a read-only mount does for a
// container. The function byHand changes the directory as a program on the node would.
func (n *node) readOnlyBin(t *testing.T) (byHand func(f func() error)) {
	t.Helper()
	if os.Getuid() != 0 { // modes stop other users
		mode := func(m os.FileMode) error { return os.Chmod(n.bin, m) }
		t.Cleanup(func() { _ = mode(0o755) })
		if err := mode(0o555); err != nil {
			t.Fatal(err)
		}
		return func(f func() error) {
			t.Helper()
			if err := errors.Join(mode(0o755), f(), mode(0o555)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Only the descriptor's path leads to this mount, so it is gone however the test ends.
	fd, err := unix.OpenTree(unix.AT_FDCWD, n.bin, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		t.Fatal(err)
	}
	n.bin = fmt.Sprintf("/proc/self/fd/%d", fd)
	return func(f func() error) {
		t.Helper()
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
}

// wantReadOnly checks that an error says what is wrong with the binary and what to do.
func wantReadOnly(t *testing.T, err error, fault string) {
	t.Helper()
	if !errors.Is(err, unix.EROFS) && !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v, want a refusal to write", err)
		return
	}
	wants := []string{"istio-pod-network-cni " + fault}
	if errors.Is(err, unix.EROFS) {
		wants = append(wants, "restart the agent's pod", "cni install --binary-only")
	}
	for _, want := range wants {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

func TestPlaceBinary_newVersion_isPlacedAlone(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-kc.conflist", plain)
	before := n.tree(t)
	for _, version := range []string{"#!program", "#!newer", "#!newer"} {
		n.write(t, n.source, version)
		if err := n.installer(t).PlaceBinary(); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(n.bin, "istio-pod-network-cni")); err != nil || string(got) != version {
			t.Errorf("%q, %v; want %q", got, err, version)
		}
	}
	if n.count(BinaryPlaced) != 2 {
		t.Errorf("placed %d times, want 2", n.count(BinaryPlaced))
	}
	if after := n.tree(t); len(after) != len(before) || n.get(t, "10-kc.conflist") != plain {
		t.Error("the configuration was touched")
	}
}

// With the binary from the init container the agent needs no write access to the directory, and repairs the configuration.
func TestStart_readOnlyBinDir_repairsConfiguration(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-kc.conflist", plain)
	if err := n.installer(t).PlaceBinary(); err != nil {
		t.Fatal(err)
	}
	onNode := filepath.Join(n.bin, "istio-pod-network-cni")
	byHand := n.readOnlyBin(t)
	i := n.installer(t)
	n.start(t, i)
	eventually(t, "the entry is there", func() bool { return n.get(t, "10-kc.conflist") == chained && i.Check() == nil })
	n.put(t, "10-kc.conflist", strings.Replace(plain, "cni0", "cni1", 1))
	eventually(t, "the entry is back", func() bool {
		return n.get(t, "10-kc.conflist") == strings.Replace(chained, "cni0", "cni1", 1)
	})
	byHand(func() error { return os.Remove(onNode) })
	eventually(t, "it is notified", func() bool { return n.count(Failed) == 1 })
	wantReadOnly(t, i.Check(), "is not there")
	byHand(func() error { return os.WriteFile(onNode, []byte("#!other"), 0o755) })
	eventually(t, "the binary of another pod's init container is used", func() bool { return i.Check() == nil })
}

// After a failed upgrade and its rollback the newer plugin is there, and the older agent cannot replace it.
func TestStart_otherBinaryReadOnly_isUsed(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-kc.conflist", plain)
	n.write(t, filepath.Join(n.bin, "istio-pod-network-cni"), "#!other")
	if err := os.Chmod(filepath.Join(n.bin, "istio-pod-network-cni"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.readOnlyBin(t)
	i := n.installer(t, func(i *Installer) { i.resync = time.Millisecond })
	n.start(t, i)
	eventually(t, "it chains", func() bool { return n.get(t, "10-kc.conflist") == chained && i.Check() == nil })
	n.put(t, "10-kc.conflist", strings.Replace(plain, "cni0", "cni1", 1))
	eventually(t, "it repairs", func() bool { return n.get(t, "10-kc.conflist") == strings.Replace(chained, "cni0", "cni1", 1) })
	if n.count(OtherBinary) != 1 || n.count(Failed) != 0 {
		t.Errorf("notified %d times, want once; %d failures", n.count(OtherBinary), n.count(Failed))
	}
	wantReadOnly(t, n.lastError(OtherBinary), "is not the one of this version")
	if err := n.installer(t).PlaceBinary(); err == nil {
		t.Error("the init container, which has to install this version, accepts another one")
	}
}
