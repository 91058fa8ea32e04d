package foreign

import (
	"net"
	"testing"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/test/kerneltest"
)

func state(t *testing.T, r Reader, ns *netns.NS) State {
	t.Helper()
	s, ok := r.State(ns)
	if !ok {
		t.Fatal("the state is not known")
	}
	return s
}

func TestState_ruleChanges_differs(t *testing.T) {
	kerneltest.ProgramPath(t, "iptables-legacy")
	ns, r := kerneltest.New(t), NewReader()
	before := state(t, r, ns)
	for _, script := range []string{
		"nft add table inet x", "nft add chain inet x y",
		"iptables-legacy -t filter -A OUTPUT -d 192.0.2.1 -j ACCEPT", "iptables-legacy -t filter -R OUTPUT 1 -d 192.0.2.2 -j ACCEPT",
		"iptables-legacy -t filter -R OUTPUT 1 -d 192.0.2.2 -j DROP", "iptables-legacy -t nat -N PODNET_OUTBOUND",
		"ip6tables-legacy -t mangle -A PREROUTING -p tcp -j DROP", "ip6tables-legacy -t mangle -F",
		"nft delete table inet x",
	} {
		kerneltest.Shell(t, ns, script, "")
		after := state(t, r, ns)
		if after == before {
			t.Errorf("%s: the state is the same", script)
		}
		if again := state(t, r, ns); again != after {
			t.Errorf("%s: without a change the state went from %+v to %+v", script, after, again)
		}
		before = after
	}
}

func TestState_packetsPass_isTheSame(t *testing.T) {
	kerneltest.ProgramPath(t, "iptables-legacy")
	ns, r := kerneltest.New(t), NewReader()
	kerneltest.Shell(t, ns, "iptables-legacy -A OUTPUT -p udp -j ACCEPT; ip6tables-legacy -A OUTPUT -p udp -j ACCEPT", "")
	before := state(t, r, ns)
	for _, to := range []string{"127.0.0.1:9", "[::1]:9"} {
		err := ns.Inside(func() error {
			c, err := net.Dial("udp", to)
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte("x"))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	counters := kerneltest.Shell(t, ns, "iptables-legacy-save -c | grep -c '^.[1-9].*OUTPUT.*udp'; ip6tables-legacy-save -c | grep -c '^.[1-9].*OUTPUT.*udp'", "")
	if after := state(t, r, ns); after != before || counters != "1\n1\n" {
		t.Errorf("counted packets (%q) changed the state from %+v to %+v", counters, before, after)
	}
}
