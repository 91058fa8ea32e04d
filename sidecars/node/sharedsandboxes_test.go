package node

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/test/kerneltest"
)

// bound keeps a port of a pod without listening on it.
func bound(t *testing.T, ns *netns.NS, reuse bool, at unix.Sockaddr) {
	t.Helper()
	family := unix.AF_INET
	if _, is6 := at.(*unix.SockaddrInet6); is6 {
		family = unix.AF_INET6
	}
	fd, err := ns.Socket(family, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if reuse {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err = errors.Join(err, unix.Bind(fd, at)); err != nil {
		t.Fatal(err)
	}
}

// servedOnce has a proxy serve a connection at an address, and end: the connection keeps the port for a while.
func servedOnce(t *testing.T, ns *netns.NS, address string) {
	t.Helper()
	l := kerneltest.ListenTCP(t, ns, kerneltest.Proxy, false, address)
	err := kerneltest.As(ns, kerneltest.App, func() error {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			return err
		}
		accepted, err := l.Accept()
		if err != nil {
			return err
		}
		_ = accepted.Close()
		_, _ = io.ReadAll(conn)
		return conn.Close()
	})
	if err = errors.Join(err, l.Close()); err != nil {
		t.Fatal(err)
	}
}

// listening has the application listen at an address.
func listening(address string) func(*testing.T, *netns.NS) {
	return func(t *testing.T, ns *netns.NS) {
		t.Helper()
		kerneltest.ListenTCP(t, ns, kerneltest.App, false, address)
	}
}

// binding has the application bind a port without listening on it.
func binding(reuse bool, at unix.Sockaddr) func(*testing.T, *netns.NS) {
	return func(t *testing.T, ns *netns.NS) {
		t.Helper()
		bound(t, ns, reuse, at)
	}
}

// serving has a proxy serve once and end, and then the application do more.
func serving(address string, more ...func(*testing.T, *netns.NS)) func(*testing.T, *netns.NS) {
	return func(t *testing.T, ns *netns.NS) {
		t.Helper()
		servedOnce(t, ns, address)
		for _, f := range more {
			f(t, ns)
		}
	}
}

// A port that an application has in any way is found out before the proxy is told to listen there.
func TestFree_boundPort_isTaken(t *testing.T) {
	for name, c := range map[string]struct {
		take  func(*testing.T, *netns.NS)
		taken bool
	}{
		"nobody has it":    {func(*testing.T, *netns.NS) {}, false},
		"on another port":  {listening("0.0.0.0:7002"), false},
		"it listens":       {listening("0.0.0.0:7001"), true},
		"on the loopback":  {listening("127.0.0.1:7001"), true},
		"by IPv6":          {listening("[::1]:7001"), true},
		"it has bound it":  {binding(false, &unix.SockaddrInet4{Port: 7001}), true},
		"it has by IPv6":   {binding(false, &unix.SockaddrInet6{Port: 7001, Addr: [16]byte{15: 1}}), true},
		"it shares it":     {binding(true, &unix.SockaddrInet4{Port: 7001}), true},
		"a proxy had it":   {serving("127.0.0.1:7001"), false},
		"both, one by one": {serving("127.0.0.1:7001", binding(false, &unix.SockaddrInet4{Port: 7001, Addr: [4]byte{127, 0, 0, 9}})), true},
	} {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.New(t)
			kerneltest.Sysctl(t, ns, "net/ipv4/ip_unprivileged_port_start", "0")
			c.take(t, ns)
			s := sharedSandboxes{namespaces: namespaces(t)}
			at := podnet.Sandbox{UID: "u1", ID: "s1", NetNS: ns.Path()}
			for range 2 { // what the first look has bound is free again
				err := s.Free(t.Context(), at, []uint16{7001, 7003})
				if errors.Is(err, sidecars.ErrPortTaken) != c.taken || !c.taken && err != nil || c.taken && !strings.Contains(err.Error(), "port 7001") {
					t.Errorf("error %v, want taken %v", err, c.taken)
				}
			}
		})
	}
}

// namedBy makes a namespace known by a path, as a runtime does.
func namedBy(t *testing.T, from, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o400); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(from, path, "", unix.MS_BIND, ""); err != nil {
		kerneltest.SkipOrFail(t, "mount a namespace: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
}

// What a shared proxy is told to enter is a pod's namespace, and nothing else.
func TestName_runtimePath_namesTheNamespace(t *testing.T) {
	pod, other := kerneltest.New(t), kerneltest.New(t)
	dir := t.TempDir()
	namedBy(t, pod.Path(), filepath.Join(dir, "cni-1"))
	namedBy(t, pod.Path(), filepath.Join(dir, "cni 2"))
	namedBy(t, other.Path(), filepath.Join(dir, "cni-other"))
	namedBy(t, "/proc/self/ns/net", filepath.Join(dir, "host"))
	if err := errors.Join(os.Symlink("cni-1", filepath.Join(dir, "link")), os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	s := sharedSandboxes{namespaces: namespaces(t), directories: []string{dir}}
	identity, err := s.namespaces.Identify(pod.Path())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ path, want, wrong string }{
		"a namespace":                     {path: dir + "/cni-1", want: "cni-1"},
		"a path with two slashes":         {path: dir + "//cni-1", want: "cni-1"},
		"another pod's":                   {path: dir + "/cni-other", wrong: "another network namespace"},
		"the host's":                      {path: dir + "/host", wrong: netns.ErrHost.Error()},
		"a name with a space":             {path: dir + "/cni 2", wrong: "by names of letters"},
		"a name with a line":              {path: dir + "/cni-1\n", wrong: "by names of letters"},
		"one of a process":                {path: pod.Path(), wrong: "directly in " + dir},
		"one in a directory of the pod's": {path: dir + "/pods/cni-1", wrong: "directly in " + dir},
		"a way out of the directory":      {path: dir + "/../cni-1", wrong: "directly in " + dir},
		"the directory itself":            {path: dir + "/", wrong: "directly in " + dir},
		"none":                            {path: "", wrong: "directly in " + dir},
		"a link":                          {path: dir + "/link", wrong: "is no network namespace"},
		"one that is gone":                {path: dir + "/cni-3", wrong: podnet.ErrGone.Error()},
		"a file":                          {path: dir + "/file", wrong: dir + "/file"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.Name(t.Context(), podnet.Sandbox{UID: "u1", ID: "s1", NetNS: c.path, Identity: identity})
			if c.wrong != "" && got != "" && err == nil || (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) || err == nil && got != c.want {
				t.Errorf("%q, error %v, want %q, error with %q", got, err, c.want, c.wrong)
			}
		})
	}
}
