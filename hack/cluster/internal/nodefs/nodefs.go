// Package nodefs gives the node its own view of the file system, so that it uses the standard paths without touching the machine's.
package nodefs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Dirs are the machine's directories that a node uses.
type Dirs struct {
	// Scratch is an empty directory. Inside the node a tmpfs is mounted on it; outside it stays empty.
	Scratch string
	// Data holds images, containers and volumes, on a disk.
	Data string
	// Disk is what the node wrote elsewhere before it lost its power, by Disk. Nil: a new node.
	Disk *os.File
}

// layered are directories of which the node sees the machine's content and writes its own.
func layered() []string {
	return []string{"/etc", "/opt", "/usr/libexec", "/var/lib", "/var/log"}
}

// Own lists the directories of which the node has its own version: what is below them on the machine may be missing on the node.
func Own() []string { return append(layered(), "/run", "/var/run") }

// blank are directories that start empty, whatever the machine has there: another cluster's settings must not be read.
func blank() []string {
	return []string{"/etc/cni", "/etc/containerd", "/etc/containers", "/etc/crio", "/etc/kubernetes", "/opt/cni", "/var/log/pods", "/var/log/containers"}
}

// stored are as blank, but kept in Data.
func stored() []string {
	return []string{"/var/lib/cni", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet"}
}

// Prepare mounts the node's view, in a mount namespace that is new, before anything else runs there:
//   - part from the machine, so that no mount propagates back,
//   - layers over the directories that the node shares with the machine,
//   - empty directories over those that must not show the machine's own settings,
//   - directories on the disk under those that grow,
//   - a /run of its own, and propagation within the node.
func Prepare(d Dirs) error {
	// Nothing may propagate to the machine; within the node everything must, or pods would not see later mounts.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("part from the machine's mounts: %w", err)
	}
	if err := mountScratch(d); err != nil {
		return err
	}
	for _, dir := range layered() {
		if err := overlay(dir, filepath.Join(d.Scratch, flat(dir))); err != nil {
			return err
		}
	}
	for _, dir := range blank() {
		if err := bind(filepath.Join(d.Scratch, "blank", flat(dir)), dir); err != nil {
			return err
		}
	}
	for _, dir := range stored() {
		if err := bind(filepath.Join(d.Data, flat(dir)), dir); err != nil {
			return err
		}
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return fmt.Errorf("mount the node's /run: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts within the node: %w", err)
	}
	return makeDirs("/etc/cni/net.d", "/etc/containers/registries.conf.d", "/etc/kubernetes/manifests", "/opt/cni/bin", "/run/netns", "/run/nri")
}

// Disk holds what the node has written but for Data and /run, beyond the node's end. It runs in the node's namespaces.
func Disk(scratch string) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, scratch, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("hold the node's scratch space: %w", err)
	}
	return os.NewFile(uintptr(fd), scratch), nil
}

// mountScratch mounts the earlier node's space, or an empty one.
func mountScratch(d Dirs) error {
	if d.Disk == nil {
		if err := unix.Mount("tmpfs", d.Scratch, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount the node's scratch space: %w", err)
		}
		return nil
	}
	if err := unix.MoveMount(int(d.Disk.Fd()), "", unix.AT_FDCWD, d.Scratch, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount the earlier node's scratch space: %w", err)
	}
	// It came with the propagation that it had in the earlier node.
	if err := unix.Mount("", d.Scratch, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("part from the earlier node's mounts: %w", err)
	}
	return nil
}

// overlay keeps what the node writes in scratch; the machine's directory below stays as it is.
func overlay(dir, scratch string) error {
	upper, work := filepath.Join(scratch, "upper"), filepath.Join(scratch, "work")
	if err := makeDirs(upper, work); err != nil {
		return err
	}
	options := "lowerdir=" + dir + ",upperdir=" + upper + ",workdir=" + work
	if err := unix.Mount("overlay", dir, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount the node's layer over %s: %w", dir, err)
	}
	return nil
}

// bind makes both ends: the target is in a layer of the node's by then, so the machine does not see it.
func bind(source, target string) error {
	if err := makeDirs(source, target); err != nil {
		return err
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount the node's %s: %w", target, err)
	}
	return nil
}

func makeDirs(dirs ...string) error {
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make a directory of the node: %w", err)
		}
	}
	return nil
}

// flat makes one name of a path.
func flat(dir string) string { return strings.ReplaceAll(strings.TrimPrefix(dir, "/"), "/", "_") }
