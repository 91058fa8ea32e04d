package kerneltest

import (
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	"istio-pod-network-controller/internal/netns"
)

// FirstUser is the machine's id of root in a namespace of NewWithUsers.
const FirstUser = 100000

// NewWithUsers makes a fresh namespace that belongs to a user namespace of its own, as a pod with hostUsers: false has it, with lo up.
func NewWithUsers(t testing.TB) *netns.NS {
	t.Helper()
	New(t) // as root, or not at all
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: FirstUser, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, UidMappings: ids, GidMappings: ids}
	must(t, cmd.Start())
	ns, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	must(t, err)
	t.Cleanup(func() { must(t, ns.Close()) })
	AddAddresses(t, ns, "lo")
	return ns
}
