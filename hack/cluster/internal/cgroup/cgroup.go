// Package cgroup makes and removes the node's root cgroup, in every hierarchy of the machine: v2, v1 and hybrid.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// unified is where a machine that has moved to v2 mounts it; on a hybrid one it is a tmpfs of v1 hierarchies.
const unified = "/sys/fs/cgroup"

// wanted are the controllers that the kubelet insists on, or uses.
func wanted() []string { return []string{"cpu", "cpuset", "memory", "pids", "io", "hugetlb"} }

// Hierarchy is one mounted cgroup file system.
type Hierarchy struct {
	Path string
	V2   bool
}

// Hierarchies lists what the machine has, from the text of /proc/self/mountinfo.
func Hierarchies(mountinfo string) []Hierarchy {
	var found []Hierarchy
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		mount, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(mount) < 5 || len(kind) == 0 || (kind[0] != "cgroup" && kind[0] != "cgroup2") {
			continue
		}
		path := mount[4]
		if path == unified || filepath.Dir(path) == unified {
			found = append(found, Hierarchy{Path: path, V2: kind[0] == "cgroup2"})
		}
	}
	return found
}

// Make makes the cgroup name. It returns the controllers that it had to switch on for the whole machine (v2 only), for Disable.
func Make(hierarchies []Hierarchy, name string) (enabled []string, err error) {
	for _, h := range hierarchies {
		switch {
		case h.V2 && h.Path == unified:
			if enabled, err = enable(h.Path); err != nil {
				return enabled, err
			}
		case h.V2:
			continue // hybrid: runc makes what it wants there
		}
		dir := filepath.Join(h.Path, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return enabled, fmt.Errorf("make the node's cgroup: %w", err)
		}
		if err := inheritCPUSet(h.Path, dir); err != nil {
			return enabled, err
		}
	}
	return enabled, nil
}

// Processes lists who is in the cgroup name or below it.
func Processes(hierarchies []Hierarchy, name string) ([]int, error) {
	var pids []int
	for _, h := range hierarchies {
		err := walk(filepath.Join(h.Path, name), func(dir string) error {
			text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if err != nil && !gone(err) {
				return fmt.Errorf("list the processes of a cgroup: %w", err)
			}
			for field := range strings.FieldsSeq(string(text)) {
				if pid, err := strconv.Atoi(field); err == nil {
					pids = append(pids, pid)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// Remove removes the cgroup name and all below it; absent is success. Processes must have left it.
func Remove(hierarchies []Hierarchy, name string) error {
	for _, h := range hierarchies {
		var dirs []string
		if err := walk(filepath.Join(h.Path, name), func(dir string) error { dirs = append(dirs, dir); return nil }); err != nil {
			return err
		}
		slices.Reverse(dirs) // children before parents
		for _, dir := range dirs {
			if err := unix.Rmdir(dir); err != nil && !gone(err) {
				return fmt.Errorf("remove the cgroup %s: %w", dir, err)
			}
		}
	}
	return nil
}

// Disable takes back what Make enabled. A controller that somebody has come to use meanwhile stays.
func Disable(enabled []string) error {
	for _, c := range enabled {
		err := os.WriteFile(filepath.Join(unified, "cgroup.subtree_control"), []byte("-"+c), 0)
		if err != nil && !errors.Is(err, unix.EBUSY) && !gone(err) {
			return fmt.Errorf("switch off the cgroup controller %s: %w", c, err)
		}
	}
	return nil
}

// enable switches controllers on for the children of the root, which systemd does only for those that its own units use.
func enable(root string) (enabled []string, err error) {
	available, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return nil, fmt.Errorf("list the cgroup controllers: %w", err)
	}
	control := filepath.Join(root, "cgroup.subtree_control")
	on, err := os.ReadFile(control)
	if err != nil {
		return nil, fmt.Errorf("list the cgroup controllers in use: %w", err)
	}
	for _, c := range wanted() {
		if !slices.Contains(strings.Fields(string(available)), c) || slices.Contains(strings.Fields(string(on)), c) {
			continue
		}
		if err := os.WriteFile(control, []byte("+"+c), 0); err != nil {
			return enabled, fmt.Errorf("switch on the cgroup controller %s: %w", c, err)
		}
		enabled = append(enabled, c)
	}
	return enabled, nil
}

// inheritCPUSet fills in what a new v1 cpuset lacks: without CPUs and memory nodes no process can enter it.
func inheritCPUSet(parent, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		own, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || strings.TrimSpace(string(own)) != "" || parent == unified {
			continue // not a v1 cpuset, or filled in already
		}
		value, err := os.ReadFile(filepath.Join(parent, file))
		if err != nil {
			return fmt.Errorf("read the machine's %s: %w", file, err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
			return fmt.Errorf("set the node's %s: %w", file, err)
		}
	}
	return nil
}

// walk visits parents before children. A directory that is removed meanwhile counts as visited.
func walk(root string, visit func(dir string) error) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if gone(err) {
			return nil
		}
		if err != nil || !d.IsDir() {
			return err
		}
		return visit(path)
	})
}

// gone says that a cgroup was removed while it was looked at.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }
