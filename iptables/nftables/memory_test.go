package nftables

import (
	"context"
	"testing"

	nft "github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// remembered is a namespace whose rules a backend has put there, read and remembered.
func remembered(t *testing.T, want iptables.Ruleset) (*Backend, *netns.NS) {
	t.Helper()
	b, ns := New(kerneltest.Guard(t)), kerneltest.New(t)
	mustApply(t, b, ns, want)
	if mustApply(t, b, ns, want) || !b.same(t, ns, want) {
		t.Fatal("rules that were just applied are not recognized")
	}
	return b, ns
}

func (b *Backend) same(t *testing.T, ns *netns.NS, want iptables.Ruleset) bool {
	t.Helper()
	same, err := visit(t.Context(), b, ns.Path(), func(ctx context.Context, ns *netns.NS, s *socket) (bool, error) {
		return b.remembers(b.currentVersion(ctx, s, want), ns, want)
	})
	if err != nil {
		t.Fatal(err)
	}
	return same
}

func TestMemoryBeginsWithTheFirstTransaction(t *testing.T) {
	want := rules(t, nil)
	b, ns := New(kerneltest.Guard(t)), kerneltest.New(t)
	mustApply(t, b, ns, want)
	if !b.same(t, ns, want) {
		t.Error("what was just written has to be read")
	}
	mustApply(t, b, ns, rules(t, func(s *iptables.Spec) { s.InboundPort = 16006 }))
	if b.same(t, ns, want) {
		t.Error("what was there before is taken for what is there")
	}
}

// What others write at the same time cannot be distinguished from ours unless it is read.
func TestMemoryDoesNotBeginWhileOthersWrite(t *testing.T) {
	want := rules(t, nil)
	b, ns := New(kerneltest.Guard(t)), kerneltest.New(t)
	_, err := visit(t.Context(), b, ns.Path(), func(ctx context.Context, ns *netns.NS, s *socket) (bool, error) {
		l := b.currentVersion(ctx, s, want)
		fresh, err := create(want)
		if err != nil {
			return false, err
		}
		if err := write(ctx, ns, comparison{}, want, fresh); err != nil {
			return false, err
		}
		foreign(t, ns)
		b.rememberWritten(ctx, s, l)
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if b.same(t, ns, want) {
		t.Error("a change by others was not noticed")
	}
}

func TestMemoryIsOfWhatIsWantedAlone(t *testing.T) {
	tproxy := func(s *iptables.Spec) { s.Mode = iptables.ModeTProxy }
	b, ns := remembered(t, rules(t, tproxy))
	for name, other := range map[string]func(*iptables.Spec){
		"another port": func(s *iptables.Spec) { tproxy(s); s.InboundPort = 16006 },
		"another list": func(s *iptables.Spec) { tproxy(s); s.ExcludeInboundPorts = []uint16{15020} },
		"another mode": nil,
	} {
		if b.same(t, ns, rules(t, other)) {
			t.Errorf("%s is taken for what is there", name)
		}
		if drift, err := b.Verify(t.Context(), ns.Path(), rules(t, other)); err != nil || len(drift) == 0 {
			t.Errorf("%s: drift %q, error %v", name, drift, err)
		}
	}
	if !b.same(t, ns, rules(t, tproxy)) {
		t.Error("looking for something else made it forget what is there")
	}
}

func TestMemoryEndsWithAnyChangeOfRules(t *testing.T) {
	want := rules(t, nil)
	b, ns := remembered(t, want)
	foreign(t, ns)
	if b.same(t, ns, want) {
		t.Error("a change by others was not noticed")
	}
	if mustApply(t, b, ns, want) || !b.same(t, ns, want) {
		t.Error("the rules are as they were, and are not recognized")
	}
}

func TestAddressesAndRoutesAreNotRemembered(t *testing.T) {
	want := rules(t, func(s *iptables.Spec) { s.Mode = iptables.ModeTProxy })
	b, ns := remembered(t, want)
	err := ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		address, err := netlink.ParseAddr("::6/128")
		if err != nil {
			return err
		}
		return netlink.AddrDel(lo, address)
	})
	if err != nil {
		t.Fatal(err)
	}
	if !mustApply(t, b, ns, want) {
		t.Error("an address is gone, and nothing was done")
	}
}

// The kernel gives a new namespace the inode of one that is gone, its generations count anew, and another agent can have
// written there: only the cookie distinguishes the two.
func TestMemoryIsNotOfANamespaceThatIsGone(t *testing.T) {
	want := rules(t, nil)
	b, ns := remembered(t, want)
	_, err := visit(t.Context(), b, ns.Path(), func(ctx context.Context, _ *netns.NS, s *socket) (bool, error) {
		l := b.currentVersion(ctx, s, want)
		gone := l.id
		gone.Cookie++
		if !b.memory.has(l.id, l.version) || b.memory.has(gone, l.version) {
			t.Error("a namespace is taken for another one of the same inode")
		}
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOnlyNamespacesWithACookieAreRemembered(t *testing.T) {
	m, nameless := newMemory(), netns.Identity{ID: netns.ID{Dev: 4, Ino: 4026531840}}
	m.remember(nameless, version{generation: 2})
	if m.has(nameless, version{generation: 2}) {
		t.Error("a namespace without a cookie is remembered")
	}
	if m.has(netns.Identity{Cookie: 7}, version{}) {
		t.Error("a namespace that was never seen is remembered")
	}
}

func TestMemoryIsBounded(t *testing.T) {
	m, last := newMemory(), netns.Identity{Cookie: maxRemembered + 10}
	for i := range last.Cookie {
		m.remember(netns.Identity{Cookie: i + 1}, version{generation: 1})
	}
	if n := len(m.versions); n > maxRemembered || !m.has(last, version{generation: 1}) {
		t.Errorf("%d are remembered, the last one: %v", n, m.has(last, version{generation: 1}))
	}
}

// foreign makes a table of somebody else.
func foreign(t *testing.T, ns *netns.NS) {
	t.Helper()
	conn, err := nft.New(nft.WithNetNSFd(ns.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	conn.AddTable(&nft.Table{Family: nft.TableFamilyIPv4, Name: "foreign"})
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
}
