package space_test

import (
	"os"
	"os/exec"
	"testing"

	"istio-pod-network-controller/hack/cluster/internal/space"
	"istio-pod-network-controller/test/kerneltest"
)

func TestCreatedNamespaceLastsWithItsProcessAndDoEntersIt(t *testing.T) {
	kerneltest.Root(t)
	before := netns(t)
	var holder *exec.Cmd
	var inside string
	err := space.Create(space.ControlPlane, func() error {
		inside = netns(t)
		holder = exec.Command("/bin/sleep", "60")
		return holder.Start()
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
	if inside == before {
		t.Fatal("Create ran in the old namespace")
	}
	err = space.Do(holder.Process.Pid, space.ControlPlane, func() error {
		if got := netns(t); got != inside {
			t.Errorf("Do ran in %s, want %s", got, inside)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := netns(t); got != before {
		t.Errorf("this thread is left in %s", got)
	}
}

func netns(t *testing.T) string {
	t.Helper()
	link, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Error(err)
	}
	return link
}
