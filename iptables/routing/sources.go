package routing

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
)

const settings = "net/ipv4/conf/all/"

// unsourced reports whether the kernel drops what comes in for a transparent proxy: with src_valid_mark, which programs for VPNs set, it looks for the
// way back to a packet's source by the packet's mark, finds our route, which says that the source is the pod itself, and refuses that unless
// accept_local is set (fib_validate_source in net/ipv4/fib_frontend.c, Linux 6.18). It reads the calling thread's namespace.
func unsourced() (bool, error) {
	byMark, err := flag("src_valid_mark")
	if err != nil || !byMark {
		return false, err
	}
	local, err := flag("accept_local")
	return !local, err
}

func flag(name string) (bool, error) {
	text, err := os.ReadFile("/proc/sys/" + settings + name)
	if err != nil {
		return false, fmt.Errorf("read net.ipv4.conf.all.%s: %w", name, err)
	}
	return strings.TrimSpace(string(text)) != "0", nil
}

// acceptSources lets packets in that unsourced is about. src_valid_mark stays, which the VPN needs. The setting stays when the rules go.
func acceptSources(ns *netns.NS) error {
	var defeated bool
	err := ns.Inside(func() (err error) { defeated, err = unsourced(); return err })
	if err != nil || !defeated {
		return err
	}
	err = netns.SetSysctl(ns, settings+"accept_local", "1")
	if err == nil || errors.Is(err, unix.ENOSYS) { // before Linux 5.2, with the backend iptables
		return nil
	}
	return fmt.Errorf("set net.ipv4.conf.all.accept_local: %w", err)
}
