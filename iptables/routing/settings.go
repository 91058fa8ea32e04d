package routing

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
)

// settings is where the kernel's settings for IPv4 are below /proc/sys. What is set here stays when the rules go.
const settings = "net/ipv4/"

// setDemux has the kernel look for a packet's connection after all translation only, where its own early look would find another one. The setting
// costs each packet that comes in a lookup of its route.
func setDemux(ns *netns.NS) error {
	var system unix.Utsname
	if err := unix.Uname(&system); err != nil || !confuses(unix.ByteSliceToString(system.Release[:])) {
		return err
	}
	return set(ns, "tcp_early_demux", "0")
}

// confuses reports whether a kernel takes two connections of a client for each other, if they come from one port and are redirected to one: the second
// gets another source port, but only after the early look, and is never opened. Linux 6.7 looks again (its commit e27c3295114b).
func confuses(release string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return n == 2 && (major < 6 || major == 6 && minor < 7)
}

// unsourced reports whether the kernel drops what comes in for a transparent proxy: with src_valid_mark, which programs for VPNs set, it looks for the
// way back to a packet's source by the packet's mark, finds our route, which says that the source is the pod itself, and refuses that unless
// accept_local is set (fib_validate_source in net/ipv4/fib_frontend.c, Linux 6.18). It reads the calling thread's namespace.
func unsourced() (bool, error) {
	byMark, err := isSet("conf/all/src_valid_mark")
	if err != nil || !byMark {
		return false, err
	}
	local, err := isSet("conf/all/accept_local")
	return !local, err
}

// acceptSources lets packets in that unsourced is about. src_valid_mark stays, which the VPN needs.
func acceptSources(ns *netns.NS) error {
	var defeated bool
	err := ns.Inside(func() (err error) { defeated, err = unsourced(); return err })
	if err != nil || !defeated {
		return err
	}
	return set(ns, "conf/all/accept_local", "1")
}

func isSet(name string) (bool, error) {
	text, err := os.ReadFile("/proc/sys/" + settings + name)
	if err != nil {
		return false, fmt.Errorf("read %s: %w", dotted(name), err)
	}
	return strings.TrimSpace(string(text)) != "0", nil
}

func set(ns *netns.NS, name, value string) error {
	err := netns.SetSysctl(ns, settings+name, value)
	if err == nil || errors.Is(err, unix.ENOSYS) { // before Linux 5.2, with the backend iptables
		return nil
	}
	return fmt.Errorf("set %s: %w", dotted(name), err)
}

// dotted returns a setting's name as the program sysctl has it.
func dotted(name string) string { return strings.ReplaceAll(settings+name, "/", ".") }
