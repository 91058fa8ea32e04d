package cgroup

import (
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/test/kerneltest"
)

func TestHierarchiesOfEachKindOfMachine(t *testing.T) {
	tests := map[string]struct {
		mountinfo string
		want      []Hierarchy
	}{
		"systemd with v2": {
			mountinfo: "22 28 0:20 / /proc rw - proc proc rw\n30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
			want:      []Hierarchy{{Path: "/sys/fs/cgroup", V2: true}},
		},
		"hybrid, two controllers in one hierarchy": {
			mountinfo: "30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n" +
				"31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
				"32 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			want: []Hierarchy{{Path: "/sys/fs/cgroup/cpu,cpuacct"}, {Path: "/sys/fs/cgroup/unified", V2: true}},
		},
		"a container's own mounts elsewhere are left alone": {
			mountinfo: "31 30 0:27 / /var/lib/x/sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Hierarchies(tt.mountinfo)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCgroupIsMadeListsItsProcessesAndGoes(t *testing.T) {
	kerneltest.Root(t)
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	hierarchies := Hierarchies(string(mountinfo))
	if len(hierarchies) == 0 {
		t.Fatal("this machine has no cgroups")
	}
	const name = "istio-pnc-cgroup-test"
	enabled, err := Make(hierarchies, name)
	t.Cleanup(func() {
		if err := Remove(hierarchies, name); err != nil {
			t.Error(err)
		}
		if err := Disable(enabled); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("/bin/sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	for _, h := range hierarchies {
		if procs := h.Path + "/" + name + "/cgroup.procs"; !h.V2 || h.Path == unified {
			if err := os.WriteFile(procs, []byte(strconv.Itoa(child.Process.Pid)), 0); err != nil {
				t.Error(err)
			}
		}
	}
	pids, err := Processes(hierarchies, name)
	if diff := cmp.Diff([]int{child.Process.Pid}, pids); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	_ = child.Process.Kill()
	_ = child.Wait()
	if pids, err := Processes(hierarchies, name); len(pids) > 0 || err != nil {
		t.Errorf("after its end: %v, %v", pids, err)
	}
}
