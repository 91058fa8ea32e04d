package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/hack/cluster/internal/space"
	"istio-pod-network-controller/test/kerneltest"
)

// On a machine that has not moved to v2, its controllers are bound to v1. What is left over, often only hugetlb, is enough to see that
// the node's cgroup is made below a unified hierarchy, that controllers reach it, and that all of it is taken back.
func TestNodesCgroupOnAUnifiedHierarchy(t *testing.T) {
	kerneltest.Root(t)
	err := space.Create(space.Node, func() error {
		if err := mountUnified(); err != nil {
			return err
		}
		return useUnified(t)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// mountUnified mounts in this thread's mount namespace what a machine with v2 has: one hierarchy.
func mountUnified() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("part from the machine's mounts: %w", err)
	}
	for {
		if err := unix.Unmount(unified, unix.MNT_DETACH); errors.Is(err, unix.EINVAL) {
			break // no mount is left there
		} else if err != nil {
			return fmt.Errorf("unmount the machine's cgroups: %w", err)
		}
	}
	return unix.Mount("cgroup2", unified, "cgroup2", 0, "")
}

func useUnified(t *testing.T) error {
	t.Helper()
	const name = "istio-pnc-unified-test"
	hierarchies, err := ownHierarchies()
	if err != nil {
		return err
	}
	if diff := cmp.Diff([]Hierarchy{{Path: unified, V2: true}}, hierarchies); diff != "" {
		return errors.New(diff)
	}
	before := words("cgroup.subtree_control")
	child := exec.Command("/bin/sleep", "60")
	if err := child.Start(); err != nil {
		return err
	}
	defer func() { _ = child.Wait() }()
	defer func() { _ = child.Process.Kill() }()
	enabled, err := Make(hierarchies, name)
	if err == nil {
		err = checkUnified(t, hierarchies, name, child.Process.Pid)
	}
	_ = child.Process.Kill()
	_ = child.Wait()
	if err := errors.Join(err, Remove(hierarchies, name), Disable(enabled)); err != nil {
		return err
	}
	if diff := cmp.Diff(before, words("cgroup.subtree_control")); diff != "" {
		t.Errorf("the root's controllers are not what they were:\n%s", diff)
	}
	return nil
}

func checkUnified(t *testing.T, hierarchies []Hierarchy, name string, pid int) error {
	t.Helper()
	available, got := words("cgroup.controllers"), words(name+"/cgroup.controllers")
	for _, c := range wanted() {
		if slices.Contains(available, c) && !slices.Contains(got, c) {
			t.Errorf("the controller %s does not reach the node's cgroup, which has %v", c, got)
		}
	}
	if err := os.WriteFile(filepath.Join(unified, name, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		return err
	}
	pids, err := Processes(hierarchies, name)
	if diff := cmp.Diff([]int{pid}, pids); diff != "" {
		t.Error(diff)
	}
	return err
}

func ownHierarchies() ([]Hierarchy, error) {
	mountinfo, err := os.ReadFile("/proc/thread-self/mountinfo")
	return Hierarchies(string(mountinfo)), err
}

// words reads a file of the unified hierarchy.
func words(file string) []string {
	text, err := os.ReadFile(filepath.Join(unified, file))
	if err != nil {
		return []string{err.Error()}
	}
	return strings.Fields(string(text))
}
