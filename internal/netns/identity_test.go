package netns_test

import (
	"testing"

	"istio-pod-network-controller/internal/kerneltest"
	"istio-pod-network-controller/internal/netns"
)

func identity(t *testing.T, ns *netns.NS) netns.Identity {
	t.Helper()
	id, err := ns.Identity()
	if err != nil || id.ID != ns.ID() {
		t.Fatalf("%+v, want that of %+v: %v", id, ns.ID(), err)
	}
	if !id.Unique() {
		t.Skip("this kernel has no SO_NETNS_COOKIE: it is older than Linux 5.14")
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
