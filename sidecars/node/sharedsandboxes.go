package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/sidecars"
)

const bindTimeout = time.Second

// netnsName is what a shared proxy's configuration may have as the name of a network namespace.
var netnsName = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// netnsDirectories are where a shared proxy opens network namespaces by their names. One is a link to the other on most nodes.
func netnsDirectories() []string { return []string{"/var/run/netns", "/run/netns"} }

type sandboxRuntime interface {
	Ready(ctx context.Context, sandbox string) (bool, error)
}

// sharedSandboxes looks at the sandboxes whose pods are to share a proxy.
type sharedSandboxes struct {
	runtime    sandboxRuntime
	namespaces kernel.Namespaces
	// directories are netnsDirectories.
	directories []string
}

// Ready reports whether a sandbox runs.
func (s sharedSandboxes) Ready(ctx context.Context, of podnet.Sandbox) (bool, error) {
	return s.runtime.Ready(ctx, of.ID)
}

// Name returns the name by which a shared proxy opens a sandbox's network namespace. It is read from the runtime's path, which
// must lead to the sandbox's namespace, and not the host's: CRI-O lists the host's in the same directory.
func (s sharedSandboxes) Name(ctx context.Context, of podnet.Sandbox) (string, error) {
	path := filepath.Clean(of.NetNS)
	dir, name := filepath.Split(path)
	if !slices.Contains(s.directories, filepath.Clean(dir)) || !netnsName.MatchString(name) || name == "." || name == ".." {
		return "", fmt.Errorf("the runtime has the pod's network namespace at %q: a shared proxy opens only those directly in %s, by names of letters, digits and ._-",
			of.NetNS, s.directories[0])
	}
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%s: %w", path, podnet.ErrGone)
	} else if err != nil {
		return "", fmt.Errorf("look at the pod's network namespace: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no network namespace", path)
	}
	ctx, cancel := context.WithTimeout(ctx, bindTimeout)
	defer cancel()
	_, err = kernel.Visit(ctx, s.namespaces, of.Place(), func(context.Context, *netns.NS) (struct{}, error) { return struct{}{}, nil })
	return name, err
}

// Free returns sidecars.ErrPortTaken if a process of the pod has one of the ports, at any address of either family, whether it listens there
// or has only bound it: the proxy could not listen there, or not alone.
func (s sharedSandboxes) Free(ctx context.Context, of podnet.Sandbox, ports []uint16) error {
	ctx, cancel := context.WithTimeout(ctx, bindTimeout)
	defer cancel()
	_, err := kernel.Visit(ctx, s.namespaces, of.Place(), func(ctx context.Context, ns *netns.NS) (struct{}, error) {
		for _, port := range ports {
			for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
				if err := checkFree(ctx, ns, family, port); err != nil {
					return struct{}{}, err
				}
			}
		}
		return struct{}{}, nil
	})
	return err
}

// checkFree returns sidecars.ErrPortTaken if a bind of the port fails, unless only connections explain that: a bind with SO_REUSEADDR works,
// and there are connections. Those of an earlier proxy keep the port for a minute (TIME_WAIT), and are no obstacle.
func checkFree(ctx context.Context, ns *netns.NS, family int, port uint16) error {
	taken, err := binds(ns, family, port, false)
	if err != nil || !taken {
		return err
	}
	if taken, err = binds(ns, family, port, true); err != nil {
		return err
	}
	if !taken {
		connections := false
		if err := kernel.EachSocket(ctx, ns, connected, port, func(kernel.Socket) (more bool) { connections = true; return false }); err != nil {
			return fmt.Errorf("ask who has port %d: %w", port, err)
		}
		if connections {
			return nil
		}
	}
	return fmt.Errorf("%w: a process of the application has port %d, which the shared proxy needs: have it use another port", sidecars.ErrPortTaken, port)
}

// binds tries to bind a socket to a port at all addresses, closes it, and reports whether the port is taken. besides sets SO_REUSEADDR: then
// connections do not count, but a listener does. In a family that the pod does not have, no port is taken.
func binds(ns *netns.NS, family int, port uint16, besides bool) (taken bool, err error) {
	fd, err := ns.Socket(family, unix.SOCK_STREAM, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("try port %d: %w", port, err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	var at unix.Sockaddr = &unix.SockaddrInet4{Port: int(port)}
	if family == unix.AF_INET6 {
		at = &unix.SockaddrInet6{Port: int(port)}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return false, fmt.Errorf("try port %d: %w", port, err)
		}
	}
	if besides {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return false, fmt.Errorf("try port %d: %w", port, err)
		}
	}
	switch err := unix.Bind(fd, at); {
	case errors.Is(err, unix.EADDRINUSE):
		return true, nil
	case err != nil && !errors.Is(err, unix.EADDRNOTAVAIL):
		return false, fmt.Errorf("try port %d: %w", port, err)
	}
	return false, nil
}

// connected are the states of sockets that are neither closed, nor listening, nor only bound (include/net/tcp_states.h).
const (
	connected = (1<<(tcpLast+1) - 1) &^ (1<<tcpListen | 1<<tcpClose | 1)
	tcpClose  = 7
	tcpListen = 10
	tcpLast   = 12 // TCP_NEW_SYN_RECV
)
