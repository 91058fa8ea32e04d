package routing

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// open is one visit to the namespace.
func open(t *testing.T, ns *netns.NS, f func(*namespace) error) {
	t.Helper()
	if err := within(ns, f); err != nil {
		t.Fatal(err)
	}
}

func TestLoopback_addressesComeAndGo(t *testing.T) {
	ns := kerneltest.New(t)
	wantRead(t, ns, "before", iptables.Ruleset{})
	for range 2 {
		open(t, ns, func(n *namespace) error { return n.addLoopback() })
		wantRead(t, ns, "added", redirect())
	}
	for i, was := range []bool{true, false} {
		open(t, ns, func(n *namespace) error {
			removed, err := n.removeLoopback()
			if removed != was {
				t.Errorf("time %d: removed %v", i, removed)
			}
			return err
		})
		wantRead(t, ns, "removed", iptables.Ruleset{})
	}
}

// A pod without IPv6 has nothing that could use the address, and the kernel would refuse it.
func TestPrepare_noIPv6_addsNoAddress(t *testing.T) {
	ns := kerneltest.New(t)
	switchIPv6(t, ns, "1")
	for _, want := range []iptables.Ruleset{redirect(), tproxy(), redirect()} {
		change(t, ns, want)
		wantRead(t, ns, "an address that cannot be there is not missing", want)
	}
	if out := kerneltest.Shell(t, ns, "ip -6 addr show lo", ""); out != "" {
		t.Error(out)
	}
	switchIPv6(t, ns, "0")
	wantRead(t, ns, "IPv6 is back, and the address is missed", iptables.Ruleset{})
	switchIPv6(t, ns, "1")
	kerneltest.Shell(t, ns, "ip link set lo down", "")
	change(t, ns, tproxy())
	wantRead(t, ns, "lo was down, too", tproxy())
}

// The CNI plugin loopback sets lo down when a sandbox ends, which takes its addresses.
func TestDrift_loIsDown_addressIsMissedOnceItIsUp(t *testing.T) {
	ns, want := kerneltest.New(t), redirect()
	change(t, ns, want)
	for _, c := range []struct {
		state string
		drift int
	}{{"up", 0}, {"down", 0}, {"up", 1}} {
		kerneltest.Shell(t, ns, "ip link set lo "+c.state, "")
		all, err := Drift(ns, want)
		addresses, errAddresses := AddressDrift(ns, want)
		if err := errors.Join(err, errAddresses); err != nil || len(all) != c.drift || len(addresses) != c.drift {
			t.Errorf("lo is %s: drift %s and %s, error %v", c.state, all, addresses, err)
		}
	}
}

// The pod, or another project, may change addresses at the same time.
func TestChange_anotherProgramIsFaster_isDone(t *testing.T) {
	ns := kerneltest.New(t)
	open(t, ns, func(n *namespace) error {
		kerneltest.Shell(t, ns, "ip addr add ::6/128 dev lo", "")
		return n.addLoopback()
	})
	change(t, ns, tproxy())
	open(t, ns, func(n *namespace) error {
		kerneltest.Shell(t, ns, "ip rule del pref 1000; ip -6 rule del pref 1000; ip route flush table 15006; ip -6 route flush table 15006", "")
		n.end = time.Now().Add(limit) // programs may take longer than all of a change may
		return n.removePolicy()
	})
	wantRead(t, ns, "removed by others", redirect())
}

func TestRead_addressWithAnotherPrefix_counts(t *testing.T) {
	ns := kerneltest.New(t)
	kerneltest.Shell(t, ns, "ip addr add ::6/64 dev lo", "")
	wantRead(t, ns, "theirs", redirect())
	change(t, ns, redirect())
	if out := kerneltest.Shell(t, ns, "ip addr show dev lo", ""); !strings.Contains(out, "::6/64") {
		t.Errorf("the address was replaced: %s", out)
	}
	kerneltest.Shell(t, ns, "ip addr del ::6/64 dev lo; ip link add d0 type veth peer name d1; ip addr add ::6/128 dev d0", "")
	wantRead(t, ns, "on another interface", iptables.Ruleset{})
}

func switchIPv6(t *testing.T, ns *netns.NS, disabled string) {
	t.Helper()
	err := ns.Inside(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6", []byte(disabled), 0o600) })
	if err != nil {
		t.Fatal(err)
	}
}

// A runtime may ask before it has set lo up. What it does later then changes nothing. Routes that go with lo are drift, addresses are not.
func TestPrepare_loIsDown_isWhole(t *testing.T) {
	for name, want := range map[string]iptables.Ruleset{"REDIRECT": redirect(), "TPROXY": tproxy()} {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.New(t)
			kerneltest.Shell(t, ns, "ip link set lo down", "")
			down := iptables.Ruleset{Loopback: want.Loopback}
			wantRead(t, ns, "before", down)
			change(t, ns, want)
			wantRead(t, ns, "written", want)
			kerneltest.Shell(t, ns, "ip link set lo up", "")
			wantRead(t, ns, "lo is set up again", want)
			kerneltest.Shell(t, ns, "ip link set lo down", "")
			wantRead(t, ns, "lo is down", down)
			change(t, ns, want)
			wantRead(t, ns, "mended", want)
		})
	}
}

// Where Istio has rules, it has added the same address.
func TestRemove_otherProject_keepsAddress(t *testing.T) {
	ns := kerneltest.New(t)
	change(t, ns, tproxy())
	kerneltest.Shell(t, ns, `ip rule add fwmark 1337 lookup 133; ip route add local default dev lo table 133
nft 'add table inet istio-proxy-nat; add chain inet istio-proxy-nat output'`, "")
	for _, want := range []bool{true, false} {
		if removed, err := Remove(t.Context(), ns); err != nil || removed != want {
			t.Errorf("removed %v, error %v; want %v", removed, err, want)
		}
	}
	out := kerneltest.Shell(t, ns, "ip -6 addr show lo; ip rule; ip route show table 133; ip -6 rule", "")
	for _, part := range []string{"::6/128", "fwmark 0x539 lookup 133", "local default dev lo"} {
		if !strings.Contains(out, part) {
			t.Errorf("%s is gone:\n%s", part, out)
		}
	}
	if strings.Contains(out, "lookup 15006") {
		t.Error(out)
	}
	kerneltest.Shell(t, ns, "nft delete table inet istio-proxy-nat", "")
	if removed, err := Remove(t.Context(), ns); err != nil || !removed {
		t.Errorf("without the others: removed %v, error %v", removed, err)
	}
}
