package conformance

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// firstID is the machine's id of the pod's root, as in a pod with hostUsers: false.
const firstID = 100000

// userNamespacePod makes a network namespace that belongs to a user namespace of its own.
func userNamespacePod(t *testing.T) *netns.NS {
	t.Helper()
	kerneltest.New(t) // as root, or not at all
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: firstID, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, UidMappings: ids, GidMappings: ids,
	}
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
	kerneltest.AddAddresses(t, ns, "lo")
	return ns
}

// In a pod with hostUsers: false the proxy is user 1337 as the pod sees it. nftables knows that; iptables cannot, and says so.
func TestRules_podWithOwnUsers_isCaptured(t *testing.T) {
	for _, b := range backends(t) {
		for _, mode := range []iptables.Mode{iptables.ModeRedirect, iptables.ModeTProxy} {
			t.Run(fmt.Sprintf("%s/%s", b.Name(), mode), func(t *testing.T) {
				w := newWorldAround(t, userNamespacePod(t), "ds")
				setup := configuration{spec: with(func(s *iptables.Spec) { s.Mode = mode })}
				_, err := b.Apply(t.Context(), w.pod().Path(), setup.rules(t))
				if b.Name() != "nftables" {
					if err == nil || !strings.Contains(err.Error(), "hostUsers") {
						t.Errorf("error %v does not speak of hostUsers", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				in := func(id int) int { return firstID + id }
				w.listen(t, configuration{spec: with(func(s *iptables.Spec) { s.Mode, s.ProxyUID, s.ProxyGID = mode, firstID+1337, firstID+1337 })})
				probes, want := parseLines(t, []string{
					fmt.Sprintf("pod %d tcp 93.184.216.34:80 = PROXY:15001", in(1000)), fmt.Sprintf("pod %d tcp 93.184.216.34:80 = WORLD:7000", in(1337)),
					fmt.Sprintf("pod %d tcp 10.244.1.5:8080 = PROXY:15006", in(1337)), fmt.Sprintf("pod %d tcp 10.244.1.5:8080 = APP:8080", in(1000)),
					fmt.Sprintf("pod %d tcp [fd00:99::34]:80 = WORLD:7000", in(1337)), "world 0 tcp [fd00:10:244:1::5]:8080 = PROXY:15006",
				})
				w.compare(t, probes, want)
			})
		}
	}
}
