package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/profile"
)

const askTimeout = time.Second

// asker asks proxies whether they are ready, from inside their pods' network namespaces.
type asker struct {
	namespaces kernel.Namespaces
	homes      home.Homes
}

// Ask returns nil if the proxy of an epoch is ready, or alive, and sidecars.ErrPortTaken if another user listens on its ports. Old and new HAProxy
// have the same listeners, and either takes a connection to them. So a HAProxy that is to be ready must answer on the socket that only its
// epoch has, too.
func (a asker) Ask(ctx context.Context, s podnet.Sandbox, p *profile.Version, epoch uint32, q probe.Question) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	r, ports := q.Of(p, epoch), p.Ports()
	if p.Spec.Istio != nil && q == probe.Ready {
		facts := a.homes.Of(s.Key()).Epoch(epoch).Facts()
		if facts.StatusPort == 0 {
			return fmt.Errorf("its ports are not known: its file facts-%d.json is no longer in --sidecar-root, or another profile made it; it is replaced", epoch)
		}
		r.HTTPGet.Port, ports = facts.StatusPort, append(ports, uint16(facts.StatusPort), uint16(facts.AdminPort))
	}
	if err := a.checkPorts(ctx, s, p, ports); err != nil {
		return err
	}
	if p.Spec.Handover == profile.HandoverHAProxy && q == probe.Ready {
		if err := a.askHAProxy(ctx, s, profile.HandoverSocket(epoch)); err != nil {
			return err
		}
	}
	port := r.TCPPort
	if r.HTTPGet != nil {
		port = r.HTTPGet.Port
	}
	if n := p.Spec.Network; port != 0 && (port == n.OutboundPort || port == n.InboundPort) { // connections there wait for the proxy, this one as well
		if err := a.listens(ctx, s, port); err != nil {
			return err
		}
	}
	switch {
	case r.Socket != "":
		conn, err := a.dialSocket(ctx, s, r.Socket)
		if err != nil {
			return err
		}
		return conn.Close()
	case r.TCPPort != 0:
		return a.askPort(ctx, s, r.TCPPort)
	case r.HTTPGet != nil:
		return a.askHTTP(ctx, s, r.HTTPGet)
	}
	return errors.New("the profile does not say how to ask it")
}

// askHAProxy returns nil if a HAProxy answers on its admin socket. That it takes a connection says nothing: the kernel takes those of a process
// that is stopped, or hangs.
func (a asker) askHAProxy(ctx context.Context, s podnet.Sandbox, socket string) error {
	conn, err := a.dialSocket(ctx, s, socket)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // all was read
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return fmt.Errorf("ask the proxy's socket %s: %w", socket, err)
	}
	var answer [1]byte
	if _, err = conn.Write([]byte("show info\n")); err == nil {
		_, err = conn.Read(answer[:])
	}
	if err != nil { // its text has the number of a descriptor, which is another one each time
		return fmt.Errorf("the proxy does not answer on its socket %s", socket)
	}
	return nil
}

// acceptPoll is the time between two looks whether a connection was accepted.
const acceptPoll = 10 * time.Millisecond

// askPort returns nil if a process accepts connections to a port: one is made, and then the kernel holds none that waits. The kernel takes
// those of a process that is stopped, or hangs.
func (a asker) askPort(ctx context.Context, s podnet.Sandbox, port int32) error {
	conn, err := a.dial(ctx, s, port)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing was written
	for {
		waiting, err := kernel.Visit(ctx, a.namespaces, s.Place(), func(ctx context.Context, ns *netns.NS) (uint32, error) {
			return kernel.Waiting(ctx, ns, uint16(port))
		})
		if err != nil || waiting == 0 {
			return err
		}
		if !jitter.Wait(ctx, acceptPoll) {
			return fmt.Errorf("the proxy does not accept connections to its port %d", port)
		}
	}
}

// listens returns sidecars.ErrNobodyListens if no process listens on a port.
func (a asker) listens(ctx context.Context, s podnet.Sandbox, port int32) error {
	unheard, err := a.namespaces.Unheard(ctx, s.Place(), []uint16{uint16(port)})
	if err == nil && len(unheard) > 0 {
		err = fmt.Errorf("%w on the proxy's port %d", sidecars.ErrNobodyListens, port)
	}
	return err
}

func (a asker) dial(ctx context.Context, s podnet.Sandbox, port int32) (net.Conn, error) {
	conn, err := kernel.Visit(ctx, a.namespaces, s.Place(), func(_ context.Context, ns *netns.NS) (net.Conn, error) {
		fd, err := ns.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		return connect(ctx, fd, port)
	})
	if err != nil {
		return nil, fmt.Errorf("connect to the proxy's port %d: %w", port, err)
	}
	return conn, nil
}

// dialSocket connects to a socket in the directory of the sandbox that its proxies can write to.
func (a asker) dialSocket(ctx context.Context, s podnet.Sandbox, name string) (net.Conn, error) {
	return home.DialSocket(ctx, filepath.Join(a.homes.Of(s.Key()).Run(), name))
}

// connect connects a socket to a port of 127.0.0.1, and closes it if that fails.
func connect(ctx context.Context, fd int, port int32) (net.Conn, error) {
	err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}})
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return nil, errors.Join(err, unix.Close(fd))
	}
	deadline, _ := ctx.Deadline()
	n, err := 0, error(unix.EINTR)
	for errors.Is(err, unix.EINTR) { // as a signal of Go's scheduler does
		left := max(0, time.Until(deadline)) // less than 0 is for ever, and a pod may drop what the kernel sends
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(left/time.Millisecond)+1)
	}
	if err == nil && n == 0 {
		err = context.DeadlineExceeded
	}
	if err == nil {
		var refused int
		if refused, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && refused != 0 {
			err = unix.Errno(refused)
		}
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	file := os.NewFile(uintptr(fd), "proxy")
	conn, err := net.FileConn(file)
	return conn, errors.Join(err, file.Close())
}

func (a asker) askHTTP(ctx context.Context, s podnet.Sandbox, page *profile.HTTPGet) error {
	if page.Socket != "" {
		return ask(ctx, http.MethodGet, "http://localhost"+page.Path, func(ctx context.Context) (net.Conn, error) { return a.dialSocket(ctx, s, page.Socket) })
	}
	url := "http://127.0.0.1:" + strconv.Itoa(int(page.Port)) + page.Path
	return ask(ctx, http.MethodGet, url, func(ctx context.Context) (net.Conn, error) { return a.dial(ctx, s, page.Port) })
}

// Serves returns nil if an epoch's Envoy has taken over: then its admin interface answers /ready with 200.
func (a asker) Serves(ctx context.Context, s podnet.Sandbox, epoch uint32) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return a.askHTTP(ctx, s, &profile.HTTPGet{Socket: profile.AdminSocket(epoch), Path: "/ready"})
}

// Listens returns sidecars.ErrNobodyListens if no process listens on the profile's outbound port.
func (a asker) Listens(ctx context.Context, s podnet.Sandbox, p *profile.Version) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return a.listens(ctx, s, p.Spec.Network.OutboundPort)
}

// maxAnswer bounds what is read of an answer's headers: an application that has become the proxy's user may answer in its place.
const maxAnswer = 4 << 10

// ask returns nil if a page is answered with a status from 200 to 399.
func ask(ctx context.Context, method, url string, dial func(context.Context) (net.Conn, error)) error {
	transport := &http.Transport{
		DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswer,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("make request for the proxy: %w", err)
	}
	response, err := transport.RoundTrip(request) // which follows no redirect
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err // without the ports, which are others each time: the text goes into the ManagedProxy
	}
	if err != nil {
		return fmt.Errorf("ask the proxy: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // nothing is read
	if response.StatusCode < http.StatusOK || response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("the proxy answers with status %d", response.StatusCode)
	}
	return nil
}

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

// Move has the kernel give the queue of a listener that closes to the other listeners of the same address, port and user.
func (a asker) Move(ctx context.Context, s podnet.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := kernel.Visit(ctx, a.namespaces, s.Place(), func(_ context.Context, ns *netns.NS) (struct{}, error) {
		return struct{}{}, kernel.MigrateRequests(ns)
	})
	return err
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
