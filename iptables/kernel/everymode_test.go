package kernel

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// Whatever a kernel has, also one that was booted without IPv6, rules of every mode come, hold and go, in a namespace as a runtime makes it, with lo down.
func TestEveryMode_freshNamespace_comesHoldsAndGoes(t *testing.T) {
	for mode, change := range map[string]func(*iptables.Spec){
		"REDIRECT": func(*iptables.Spec) {},
		"TPROXY":   func(s *iptables.Spec) { s.Mode = iptables.ModeTProxy },
		"DNS":      func(s *iptables.Spec) { s.DNS = iptables.DNSAll },
		"some resolvers": func(s *iptables.Spec) {
			s.DNS, s.Resolvers = iptables.DNSResolvConf, []netip.Addr{netip.MustParseAddr("10.96.0.10")}
		},
		"listening ports": func(s *iptables.Spec) { s.IncludeInboundPorts.Listening = true },
	} {
		for name, b := range allBackends(t) {
			t.Run(mode+"/"+name, func(t *testing.T) {
				ns := kerneltest.New(t)
				if err := ns.Inside(setLoDown); err != nil {
					t.Fatal(err)
				}
				spec := iptables.DefaultSpec()
				change(&spec)
				want, err := iptables.Rules(spec)
				if err != nil {
					t.Fatal(err)
				}
				comesHoldsAndGoes(t, b, ns, want)
			})
		}
	}
}

func comesHoldsAndGoes(t *testing.T, b Backend, ns *netns.NS, want iptables.Ruleset) {
	t.Helper()
	if out, err := b.Apply(t.Context(), at(ns), want); err != nil || !out.Changed() {
		t.Fatalf("changed %v, error %v", out.Changed(), err)
	}
	if out, err := b.Apply(t.Context(), at(ns), want); err != nil || out.Changed() {
		t.Errorf("again: changed %v, %q, error %v", out.Changed(), out.Drift, err)
	}
	if found, err := b.Look(t.Context(), at(ns), &want); err != nil || len(found.Drift) > 0 || len(found.Preempting) > 0 {
		t.Errorf("drift %q, before ours %q, error %v", found.Drift, found.Preempting, err)
	}
	if removed, err := b.Remove(t.Context(), at(ns)); err != nil || !removed {
		t.Errorf("removed %v, error %v", removed, err)
	}
	if present, err := b.Present(t.Context(), at(ns)); err != nil || present {
		t.Errorf("still there: %v, error %v", present, err)
	}
}

func setLoDown() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetDown(lo)
}
