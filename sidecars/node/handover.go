package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables/kernel"
)

// errOld is of kernels that move nothing, though Debian's 5.10 has the setting. Cookies of namespaces came with the same release.
var errOld = errors.New("the kernel ignores it: it is older than Linux 5.14")

// Move has the kernel give the queue of a listener that closes to the other listeners of the same address, port and user.
func (a asker) Move(ctx context.Context, s podnet.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := kernel.Visit(ctx, a.namespaces, s.Place(), func(_ context.Context, ns *netns.NS) (struct{}, error) {
		switch identity, err := ns.Identity(); {
		case err != nil:
			return struct{}{}, err
		case identity.Cookie == 0:
			return struct{}{}, errOld
		}
		return struct{}{}, netns.SetSysctl(ns, "net/ipv4/tcp_migrate_req", "1")
	})
	if err != nil {
		return fmt.Errorf("set net.ipv4.tcp_migrate_req: %w", err)
	}
	return nil
}

// Close has an Envoy tell the clients of all its connections to open new ones, and then close its listeners.
func (a asker) Close(ctx context.Context, s podnet.Sandbox, adminPort int32) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for _, how := range []string{"?graceful", ""} {
		url := fmt.Sprintf("http://127.0.0.1:%d/drain_listeners%s", adminPort, how)
		dial := func(ctx context.Context) (net.Conn, error) { return a.dial(ctx, s, adminPort) }
		if err := ask(ctx, http.MethodPost, url, dial); err != nil {
			return err
		}
	}
	return nil
}
