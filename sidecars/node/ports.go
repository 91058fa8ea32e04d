package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/profile"
)

// checkPorts returns sidecars.ErrPortTaken if a process of another user than the proxies' listens on a port of the proxy's, at any address of
// either family: it would be taken for the proxy. A process of the application that has become the proxy's user is not found out.
func (a asker) checkPorts(ctx context.Context, s podnet.Sandbox, p *profile.Version, ports []uint16) error {
	users := a.homes.Of(s.Key()).Notes().Users()
	if len(users) == 0 { // there was no proxy yet
		users = []uint32{uint32(p.UID())}
	}
	_, err := kernel.Visit(ctx, a.namespaces, s.Place(), func(ctx context.Context, ns *netns.NS) (_ struct{}, taken error) {
		err := kernel.EachListener(ctx, ns, func(l kernel.Socket) (more bool) {
			if !slices.Contains(users, l.UID) && slices.Contains(ports, l.Port) {
				taken = fmt.Errorf("%w: a process of the application, of user %d, listens on port %d, which the proxy (user %d) needs: have it use another port",
					sidecars.ErrPortTaken, l.UID, l.Port, users[0])
			}
			return taken == nil
		})
		return struct{}{}, cmp.Or(taken, err)
	})
	return err
}
