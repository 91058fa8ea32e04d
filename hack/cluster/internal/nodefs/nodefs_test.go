package nodefs

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"istio-pod-network-controller/hack/cluster/internal/space"
	"istio-pod-network-controller/test/kerneltest"
)

func TestNodeWritesStandardPathsAndTheMachineKeepsItsOwn(t *testing.T) {
	kerneltest.Root(t)
	d := Dirs{Scratch: t.TempDir(), Data: t.TempDir()}
	holder := exec.Command("/bin/sleep", "60")
	err := space.Create(space.Node, func() error {
		if err := Prepare(d); err != nil {
			return err
		}
		return holder.Start()
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })

	const marker = "nodefs-test-marker"
	written := []string{"/etc/" + marker, "/etc/cni/net.d/" + marker, "/opt/cni/bin/" + marker, "/run/netns/" + marker, "/var/log/pods/" + marker}
	err = space.Do(holder.Process.Pid, space.Node, func() error {
		for _, file := range append(written, "/var/lib/kubelet/"+marker) {
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				return err
			}
		}
		if _, err := os.Stat("/etc/passwd"); err != nil {
			t.Errorf("the node does not see the machine's files: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range written {
		if _, err := os.Stat(file); !os.IsNotExist(err) {
			t.Errorf("%s is on the machine: %v", file, err)
		}
	}
	if _, err := os.Stat(filepath.Join(d.Data, "var_lib_kubelet", marker)); err != nil {
		t.Errorf("the kubelet's files are not in the data directory: %v", err)
	}
	if left, err := os.ReadDir(d.Scratch); err != nil || len(left) > 0 {
		t.Errorf("scratch directory holds %v outside the node, %v", left, err)
	}
}

func TestNodeThatBootsAgain_findsItsDiskAndAnEmptyRun(t *testing.T) {
	kerneltest.Root(t)
	d := Dirs{Scratch: t.TempDir(), Data: t.TempDir()}
	stored, volatile := []string{"/etc/cni/net.d/x", "/opt/cni/bin/x", "/var/lib/x", "/var/log/pods/x", "/var/lib/kubelet/x"}, "/run/x"
	err := space.Create(space.Node, func() (err error) {
		if err = Prepare(d); err != nil {
			return err
		}
		for _, file := range append(stored, volatile) {
			if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
				return err
			}
		}
		d.Disk, err = Disk(d.Scratch)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Disk.Close()
	err = space.Create(space.Node, func() error {
		if err := Prepare(d); err != nil {
			return err
		}
		for _, file := range stored {
			if text, err := os.ReadFile(file); err != nil || string(text) != "x" {
				t.Errorf("%s holds %q, %v", file, text, err)
			}
		}
		if _, err := os.Stat(volatile); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", volatile, err)
		}
		return os.WriteFile("/etc/cni/net.d/y", nil, 0o600) // the layers can be written again
	})
	if err != nil {
		t.Fatal(err)
	}
}
