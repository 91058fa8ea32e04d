package kernel

import (
	"errors"
	"fmt"

	"istio-pod-network-controller/internal/netns"
)

// errOld is of kernels that move nothing, though Debian's 5.10 has the setting. Cookies of namespaces came with the same release.
var errOld = errors.New("the kernel ignores it: it is older than Linux 5.14")

// MigrateRequests has the kernel move the queue of a listener that closes to the other listeners of the same address, port and user.
func MigrateRequests(ns *netns.NS) error {
	identity, err := ns.Identity()
	if err == nil && identity.Cookie == 0 {
		err = errOld
	}
	if err == nil {
		err = netns.SetSysctl(ns, "net/ipv4/tcp_migrate_req", "1")
	}
	if err != nil {
		return fmt.Errorf("set net.ipv4.tcp_migrate_req: %w", err)
	}
	return nil
}
