package routing

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
)

// setDemux has the kernel look for a packet's connection after all translation only, where its own early look would find another one. The setting
// costs each packet that comes in a lookup of its route, and stays when the rules go.
func setDemux(ns *netns.NS) error {
	var system unix.Utsname
	if err := unix.Uname(&system); err != nil || !confuses(unix.ByteSliceToString(system.Release[:])) {
		return err
	}
	err := netns.SetSysctl(ns, "net/ipv4/tcp_early_demux", "0")
	if err == nil || errors.Is(err, unix.ENOSYS) { // before Linux 5.2, with the backend iptables
		return nil
	}
	return fmt.Errorf("set net.ipv4.tcp_early_demux: %w", err)
}

// confuses reports whether a kernel takes two connections of a client for each other, if they come from one port and are redirected to one: the second
// gets another source port, but only after the early look, and is never opened. Linux 6.7 looks again (its commit e27c3295114b).
func confuses(release string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return n == 2 && (major < 6 || major == 6 && minor < 7)
}
