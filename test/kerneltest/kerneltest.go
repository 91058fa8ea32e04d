// Package kerneltest gives tests real network namespaces: fresh ones that no path leads to, so that nothing is left behind
// however a test ends.
package kerneltest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"istio-pod-network-controller/internal/netns"
)

// Addresses of the two namespaces of NewPod. The world also has the Outside addresses, as a fake of everything outside the cluster.
const (
	Pod4     = "10.244.1.5"
	Pod6     = "fd00:10:244:1::5"
	World4   = "10.244.1.1"
	World6   = "fd00:10:244:1::1"
	Outside4 = "93.184.216.34"
	Outside6 = "2001:db8::34"
)

// New makes a fresh namespace with lo up. Without the right to, the test is skipped, or fails where REQUIRE_KERNEL is set.
func New(t testing.TB) *netns.NS {
	t.Helper()
	Root(t)
	ns, err := netns.New()
	must(t, err)
	t.Cleanup(func() { must(t, ns.Close()) })
	must(t, ns.Inside(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	}))
	return ns
}

// Root ends a test that an ordinary user cannot run.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		SkipOrFail(t, "it needs root; this is uid %d", os.Geteuid())
	}
}

// File ends a test without a file that it needs.
func File(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		SkipOrFail(t, "it needs %s", path)
	}
}

// NewPod makes a pod's namespace with eth0 and a world that routes everything back, joined by a veth pair.
func NewPod(t testing.TB) (pod, world *netns.NS) {
	t.Helper()
	pod, world = New(t), New(t)
	JoinByVeth(t, world, "w0", pod, "eth0")
	AddAddresses(t, world, "w0", World4+"/24", World6+"/64")
	AddAddresses(t, world, "lo", Outside4+"/32", Outside6+"/128")
	// The application may listen on any port, as in a pod.
	Sysctl(t, pod, "net/ipv4/ip_unprivileged_port_start", "0")
	AddAddresses(t, pod, "eth0", Pod4+"/24", Pod6+"/64")
	AddRoute(t, pod, "0.0.0.0/0", World4)
	AddRoute(t, pod, "::/0", World6)
	return pod, world
}

// Guard returns the guard of the machine's own namespace, which tests open namespaces with.
func Guard(t testing.TB) netns.Guard {
	t.Helper()
	g, err := netns.NewGuard()
	must(t, err)
	return g
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ProgramPath returns the path of a program that a test compares with or drives. Without it the test is skipped, or fails where
// REQUIRE_KERNEL is set.
func ProgramPath(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	SkipOrFail(t, "%s is not installed", name)
	return ""
}

// SkipOrFail ends a test that cannot run here: it is skipped, or fails where REQUIRE_KERNEL is set.
func SkipOrFail(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("REQUIRE_KERNEL") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// NeedOwnedTables ends a test on a kernel without nftables' tables that only the process that made them can change.
func NeedOwnedTables(t testing.TB) {
	t.Helper()
	needNft(t, "add table inet x { flags owner; }", "Invalid argument", "no tables with an owner: it is older than Linux 5.12")
}

// NeedEgressChains ends a test on a kernel without nftables' chains for what leaves by a device.
func NeedEgressChains(t testing.TB) {
	t.Helper()
	needNft(t, "add table netdev x { chain c { type filter hook egress device lo priority 0; }; }", "Operation not supported",
		"no egress chains: it is older than Linux 5.16")
}

// needNft ends a test on a kernel that refuses a command of nft with these words, and says what it has not.
func needNft(t testing.TB, command, refusal, lacks string) {
	t.Helper()
	ns, nft := New(t), ProgramPath(t, "nft")
	var out []byte
	err := ns.Inside(func() (err error) {
		out, err = exec.CommandContext(t.Context(), nft, command).CombinedOutput()
		return err
	})
	if strings.Contains(string(out), refusal) {
		SkipOrFail(t, "this kernel has %s", lacks)
	}
	must(t, err)
}

// Shell runs a script inside ns, with input, and returns what it printed.
func Shell(t testing.TB, ns *netns.NS, script, input string) string {
	t.Helper()
	var out []byte
	err := ns.Inside(func() (err error) {
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", script)
		cmd.Stdin = strings.NewReader(input)
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}
