package routing

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	"istio-pod-network-controller/internal/kerneltest"
	"istio-pod-network-controller/internal/netns"
)

func want() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("::6/128"), netip.MustParsePrefix("10.255.255.1/32")}
}

// open is one visit to the namespace.
func open(t *testing.T, ns *netns.NS, f func(*namespace) error) {
	t.Helper()
	if err := within(ns, f); err != nil {
		t.Fatal(err)
	}
}

func wantSettled(t *testing.T, ns *netns.NS, step string, asked, want []netip.Prefix) {
	t.Helper()
	open(t, ns, func(n *namespace) error {
		if have := n.settled(asked); !slices.Equal(have, want) {
			t.Errorf("%s: have %v, want %v", step, have, want)
		}
		return nil
	})
}

func TestLoopbackAddressesComeAndGo(t *testing.T) {
	ns := kerneltest.New(t)
	wantSettled(t, ns, "before", want(), nil)
	for i, count := range []int{2, 0} {
		open(t, ns, func(n *namespace) error {
			added, err := n.addLoopback(want())
			if len(added) != count {
				t.Errorf("time %d: added %v", i, added)
			}
			return err
		})
		wantSettled(t, ns, "added", want(), want())
	}
	for i, was := range []bool{true, false} {
		open(t, ns, func(n *namespace) error {
			removed, err := n.removeLoopback(want())
			if removed != was {
				t.Errorf("time %d: removed %v", i, removed)
			}
			return err
		})
		wantSettled(t, ns, "removed", want(), nil)
	}
}

// A pod without IPv6 has nothing that could use the address, and the kernel would refuse it.
func TestWithoutIPv6TheAddressIsLeftOut(t *testing.T) {
	ns := kerneltest.New(t)
	switchIPv6(t, ns, "1")
	v6 := want()[:1]
	open(t, ns, func(n *namespace) error {
		added, err := n.addLoopback(v6)
		if len(added) != 0 {
			t.Errorf("added %v", added)
		}
		return err
	})
	wantSettled(t, ns, "an address that cannot be there is not missing", v6, v6)
	switchIPv6(t, ns, "0")
	wantSettled(t, ns, "IPv6 is back, and the address is missed", v6, nil)
}

func switchIPv6(t *testing.T, ns *netns.NS, disabled string) {
	t.Helper()
	err := ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6", []byte(disabled), 0o600) })
	if err != nil {
		t.Fatal(err)
	}
}
