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

func TestLoopbackAddressesComeAndGo(t *testing.T) {
	ns := kerneltest.New(t)
	expect := func(step string, addrs ...netip.Prefix) {
		t.Helper()
		have, err := Loopback(ns, want())
		if err != nil || !slices.Equal(have, addrs) {
			t.Fatalf("%s: have %v, error %v; want %v", step, have, err, addrs)
		}
	}
	expect("before")
	for i, n := range []int{2, 0} {
		added, err := AddLoopback(ns, want())
		if err != nil || len(added) != n {
			t.Fatalf("time %d: added %v, error %v", i, added, err)
		}
		expect("added", want()...)
	}
	for i, was := range []bool{true, false} {
		removed, err := RemoveLoopback(ns, want())
		if err != nil || removed != was {
			t.Fatalf("time %d: removed %v, error %v", i, removed, err)
		}
		expect("removed")
	}
}

// A pod without IPv6 has nothing that could use the address, and the kernel would refuse it.
func TestWithoutIPv6TheAddressIsLeftOut(t *testing.T) {
	ns := kerneltest.New(t)
	switchIPv6(t, ns, "1")
	v6 := want()[:1]
	added, err := AddLoopback(ns, v6)
	if err != nil || len(added) != 0 {
		t.Errorf("added %v, error %v", added, err)
	}
	if have, err := Loopback(ns, v6); err != nil || len(have) != 1 {
		t.Errorf("an address that cannot be there counts as missing: %v, %v", have, err)
	}
	switchIPv6(t, ns, "0")
	if have, err := Loopback(ns, v6); err != nil || len(have) != 0 {
		t.Errorf("IPv6 is back, and the address is not missed: %v, %v", have, err)
	}
}

func switchIPv6(t *testing.T, ns *netns.NS, disabled string) {
	t.Helper()
	err := ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6", []byte(disabled), 0o600) })
	if err != nil {
		t.Fatal(err)
	}
}
