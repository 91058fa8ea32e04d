package netns_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/test/kerneltest"
)

func identity(t *testing.T, ns *netns.NS) podnet.Identity {
	t.Helper()
	id, err := ns.Identity()
	if err != nil || id.Dev != ns.ID().Dev || id.Ino != ns.ID().Ino {
		t.Fatalf("%+v, want that of %+v: %v", id, ns.ID(), err)
	}
	if id.Cookie == 0 {
		kerneltest.SkipOrFail(t, "this kernel has no SO_NETNS_COOKIE: it is older than Linux 5.14")
	}
	return id
}

func TestAnIdentityIsOfOneNamespaceByAnyPath(t *testing.T) {
	a, b := kerneltest.New(t), kerneltest.New(t)
	if identity(t, a) != identity(t, other(t, a)) {
		t.Error("one namespace has two identities")
	}
	if identity(t, a).Cookie == identity(t, b).Cookie {
		t.Error("two namespaces have one cookie")
	}
}

// A path of a process leads to another namespace once the process's number has been given anew, and the inode may be the
// same by then.
func TestAnIdentityIsNeverGivenAnew(t *testing.T) {
	seen := map[uint64]bool{}
	kerneltest.New(t) // says whether this machine can
	for range 20 {
		ns, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		cookie := identity(t, ns).Cookie
		if seen[cookie] {
			t.Fatalf("cookie %d was given twice", cookie)
		}
		seen[cookie] = true
		if err := ns.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestASocketIsInsideAndItsThreadIsNot(t *testing.T) {
	host, err := netns.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	ns := kerneltest.New(t)
	inside, outside := identity(t, ns), identity(t, host)
	before := descriptors(t)
	for range 50 {
		fd, err := ns.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("programs inherit the socket: flags %#x, %v", flags, err)
		}
		if cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil || cookie != inside.Cookie || inside == outside {
			t.Errorf("cookie %d, want that of %+v: %v", cookie, inside, err)
		}
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	mustBeOutside(t, host)
	if fd, err := ns.Socket(-1, unix.SOCK_DGRAM, 0); err == nil || fd != -1 {
		t.Errorf("socket %d of no family: %v", fd, err)
	}
}
