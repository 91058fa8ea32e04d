package shared

import (
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/test/kerneltest"
)

// withUsers makes a network namespace as a pod with hostUsers: false has it.
func withUsers(t *testing.T) *netns.NS {
	t.Helper()
	kerneltest.New(t) // as root, or not at all
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, UidMappings: ids, GidMappings: ids}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ns, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// Why a pod with hostUsers: false is refused: HAProxy can enter its network namespace, which another user namespace owns, but the rules there
// do not know its group, which that user namespace does not have.
func TestHAProxy_userNamespace_groupIsUnknown(t *testing.T) {
	const outside = "10.9.9.9"
	p, m := serveReal(t)
	for _, c := range []struct {
		name   string
		ns     *netns.NS
		passes bool
	}{{"plain", kerneltest.New(t), true}, {"users", withUsers(t), false}} {
		kerneltest.AddAddresses(t, c.ns, "lo", outside+"/32")
		kerneltest.Listen(t, c.ns, kerneltest.App, "world", 8080)
		p.join(t, m, c.name, c.ns)
		kerneltest.Shell(t, c.ns, "nft -f -", redirected)
		reply, err := kerneltest.Dial(t.Context(), c.ns, kerneltest.Proxy, "", outside+":8080")
		if passes := err == nil && reply.Banner == "world:8080" && reply.Dst.Port() == 8080; passes != c.passes {
			t.Errorf("%s: the proxy's group reaches the destination: %t, want %t; %+v, %v", c.name, passes, c.passes, reply, err)
		}
	}
}
