package routing

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

func redirect() iptables.Ruleset { return iptables.Ruleset{Loopback: true} }

func tproxy() iptables.Ruleset { return iptables.Ruleset{Loopback: true, Routing: true} }

func noRules() error { return nil }

func change(t *testing.T, ns *netns.NS, want iptables.Ruleset) {
	t.Helper()
	end(t, Around(ns, want, noRules))
}

func end(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantRead(t *testing.T, ns *netns.NS, step string, want iptables.Ruleset) {
	t.Helper()
	have, err := Read(ns)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("%s (-want +got):\n%s", step, diff)
	}
}

// pieces counts what there is of routes of ours, complete or not.
func pieces(t *testing.T, ns *netns.NS) (count int) {
	t.Helper()
	open(t, ns, func(n *namespace) error {
		for _, h := range n.policy {
			count += len(h.rules) + len(h.routes)
		}
		return nil
	})
	return count
}

func TestRoutesComeBeforeTheRulesAndGoAfterThem(t *testing.T) {
	ns := kerneltest.New(t)
	end(t, Around(ns, tproxy(), func() error { wantRead(t, ns, "prepared", tproxy()); return nil }))
	wantRead(t, ns, "finished", tproxy())
	for _, want := range []iptables.Ruleset{redirect(), tproxy()} {
		refused := errors.New("refused")
		if err := Around(ns, want, func() error { return refused }); !errors.Is(err, refused) {
			t.Errorf("error %v, want that of the rules", err)
		}
		wantRead(t, ns, "the old rules stay, and need the route", tproxy())
	}
	end(t, Around(ns, redirect(), func() error { wantRead(t, ns, "prepared for rules that need no route", tproxy()); return nil }))
	wantRead(t, ns, "finished without the route", redirect())
	if n := pieces(t, ns); n != 0 {
		t.Errorf("%d pieces of a route are left", n)
	}
}

// Whatever leads to our table or stands in it, and is not exactly ours, is seen and repaired: what an agent leaves that was
// killed, and what somebody else does.
func TestPrepare_spoiltRoutes_areRepaired(t *testing.T) {
	const rule, route = "ip rule del pref 1000; ip rule add pref 1000 ", "ip route flush table 15006; ip route add "
	for name, spoil := range map[string]string{
		"no rule":                              "ip rule del pref 1000",
		"no route":                             "ip route flush table 15006",
		"no rule of IPv6":                      "ip -6 rule del pref 1000",
		"no route of IPv6":                     "ip -6 route flush table 15006",
		"a second rule":                        "ip rule add pref 99 fwmark 1337 lookup 15006",
		"a second rule of the priority":        "ip rule add pref 1000 fwmark 1337 iif lo lookup 15006",
		"another mask":                         rule + "fwmark 1337/0xffff lookup 15006",
		"another mark":                         rule + "fwmark 1338 lookup 15006",
		"no mark":                              rule + "from all lookup 15006",
		"an interface":                         rule + "fwmark 1337 iif lo lookup 15006",
		"an output interface":                  rule + "fwmark 1337 oif lo lookup 15006",
		"a source":                             rule + "from 10.0.0.0/8 fwmark 1337 lookup 15006",
		"a destination":                        rule + "to 10.0.0.0/8 fwmark 1337 lookup 15006",
		"not":                                  rule + "not fwmark 1337 lookup 15006",
		"a type of service":                    rule + "tos 0x10 fwmark 1337 lookup 15006",
		"a protocol":                           rule + "fwmark 1337 ipproto udp lookup 15006",
		"users":                                rule + "fwmark 1337 uidrange 0-0 lookup 15006",
		"suppressed routes":                    rule + "fwmark 1337 lookup 15006 suppress_prefixlength 0",
		"another priority":                     "ip rule del pref 1000; ip rule add pref 40000 fwmark 1337 lookup 15006",
		"not, of IPv6":                         "ip -6 rule del pref 1000; ip -6 rule add pref 1000 not fwmark 1337 lookup 15006",
		"a blackhole":                          route + "blackhole default table 15006",
		"a blackhole in addition to ours":      "ip route add blackhole default metric 5 table 15006",
		"a narrower route in addition to ours": "ip route add unreachable 10.0.0.0/8 table 15006",
		"half of the addresses":                route + "local 0.0.0.0/1 dev lo table 15006",
		"another interface":                    "ip link add d0 type veth peer name d1; ip link set d0 up; " + route + "local default dev d0 table 15006",
		"a type of service of a route":         route + "local default tos 0x10 dev lo table 15006",
		"a source of a route":                  route + "local default dev lo src 127.0.0.1 table 15006",
		"metrics":                              route + "local default dev lo mtu lock 500 table 15006",
		"unicast":                              route + "default dev lo table 15006",
		"a blackhole of IPv6":                  "ip -6 route flush table 15006; ip -6 route add blackhole default table 15006",
		"a prohibition of IPv6":                "ip -6 route add prohibit default metric 1 table 15006",
		"routes behind a rule of a kind":       "ip rule add pref 5 fwmark 7 lookup 15006",
	} {
		for _, next := range []iptables.Ruleset{tproxy(), redirect()} {
			t.Run(fmt.Sprintf("%s, wanted: %v", name, next.Routing), func(t *testing.T) {
				ns := kerneltest.New(t)
				change(t, ns, tproxy())
				complete := pieces(t, ns)
				kerneltest.Shell(t, ns, spoil, "")
				wantRead(t, ns, "spoilt", redirect())
				change(t, ns, next)
				wantRead(t, ns, "mended", next)
				if n := pieces(t, ns); n != map[bool]int{true: complete}[next.Routing] {
					t.Errorf("%d pieces are there; there were %d\n%s", n, complete, kerneltest.Shell(t, ns, "ip rule; ip -6 rule; ip route show table all", ""))
				}
			})
		}
	}
}

// What leads elsewhere, or stands elsewhere, is others'.
func TestPrepare_foreignRoutes_stay(t *testing.T) {
	ns := kerneltest.New(t)
	const look = "ip rule; ip -6 rule; ip route show table 133; ip -6 route show table 133; ip -6 addr show lo"
	kerneltest.Shell(t, ns, `for f in -4 -6; do ip $f rule add fwmark 1337 lookup 133; ip $f route add local default dev lo table 133
ip $f rule add pref 1000 fwmark 1337 lookup 134; ip $f rule add pref 7 fwmark 1337 blackhole; done`, "")
	before := kerneltest.Shell(t, ns, look, "")
	for _, next := range []iptables.Ruleset{tproxy(), redirect(), tproxy()} {
		change(t, ns, next)
		wantRead(t, ns, "beside others", next)
	}
	if removed, err := Remove(t.Context(), ns); err != nil || !removed {
		t.Errorf("removed %v, error %v", removed, err)
	}
	if d := cmp.Diff(before, kerneltest.Shell(t, ns, look, "")); d != "" {
		t.Error(d)
	}
}

// A pod may have any number of rules, routes and addresses.
func TestRead_fullNamespace_isBounded(t *testing.T) {
	ns := kerneltest.New(t)
	var b strings.Builder
	for i := range 5_000 {
		fmt.Fprintf(&b, "rule add pref %d fwmark %d lookup 15006\n", 5000+i, i)
	}
	for i := range 5_000 {
		fmt.Fprintf(&b, "route add blackhole 10.%d.%d.0/24 table 15006\nroute add blackhole 11.%d.%d.0/24 table 7\n", i/256, i%256, i/256, i%256)
	}
	kerneltest.Shell(t, ns, "ip -batch -", b.String())
	start := time.Now()
	err := within(ns, func(n *namespace) error {
		if len(n.policy[0].rules) > maxRead || len(n.policy[0].routes) > maxRead {
			t.Errorf("%d rules and %d routes were read", len(n.policy[0].rules), len(n.policy[0].routes))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wantRead(t, ns, "full of others", iptables.Ruleset{})
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("two looks took %s", took)
	}
}

// front adds more rules in front of ours than are read.
func front(t *testing.T, ns *netns.NS) {
	t.Helper()
	var b strings.Builder
	for i := range maxRead + 100 {
		fmt.Fprintf(&b, "rule add pref 5 fwmark %d lookup 7\n", i+1)
	}
	for _, family := range []string{"-4", "-6"} {
		kerneltest.Shell(t, ns, "ip "+family+" -batch -", b.String())
	}
}

func TestRead_moreRulesInFrontThanAreRead_findsOurs(t *testing.T) {
	ns := kerneltest.New(t)
	const look = "ip rule show pref 1000; ip -6 rule show pref 1000"
	change(t, ns, tproxy())
	complete, before := pieces(t, ns), kerneltest.Shell(t, ns, look, "")
	front(t, ns)
	wantRead(t, ns, "behind others", tproxy())
	change(t, ns, tproxy())
	if after := kerneltest.Shell(t, ns, look, ""); pieces(t, ns) != complete || after != before {
		t.Errorf("%d pieces, want %d; rules %s, want %s", pieces(t, ns), complete, after, before)
	}
	kerneltest.Shell(t, ns, "ip rule del pref 1000; ip -6 rule del pref 1000", "")
	wantRead(t, ns, "without the rules", redirect())
	if left := kerneltest.Shell(t, ns, look, ""); left != "" {
		t.Errorf("the look has left %s", left)
	}
	change(t, ns, tproxy())
	wantRead(t, ns, "repaired", tproxy())
	if removed, err := Remove(t.Context(), ns); err != nil || !removed || kerneltest.Shell(t, ns, look, "") != "" {
		t.Errorf("removed %v, error %v, left %s", removed, err, kerneltest.Shell(t, ns, look, ""))
	}
}

// A table with more routes than are read is cleaned in several calls, and each but the last one says so.
func TestFinish_moreRoutesThanAreRemoved_isAnError(t *testing.T) {
	for _, next := range []iptables.Ruleset{tproxy(), redirect()} {
		ns := kerneltest.New(t)
		change(t, ns, tproxy())
		complete := pieces(t, ns)
		var b strings.Builder
		for i := range 2 * maxRead {
			fmt.Fprintf(&b, "route add blackhole 10.%d.%d.0/24 table 15006\n", i/256, i%256)
		}
		kerneltest.Shell(t, ns, "ip -batch -", b.String())
		unfinished := 0
		for range 4 {
			err := Around(ns, next, noRules)
			if err == nil {
				break
			}
			if !errors.Is(err, errUnfinished) {
				t.Fatal(err)
			}
			unfinished++
		}
		wantRead(t, ns, "cleaned", next)
		if n, want := pieces(t, ns), map[bool]int{true: complete}[next.Routing]; unfinished == 0 || n != want {
			t.Errorf("%d calls were unfinished, %d pieces are there, want %d", unfinished, n, want)
		}
	}
}

func TestRemove_reportsWhetherAnythingWasThere(t *testing.T) {
	for name, what := range map[string]iptables.Ruleset{"nothing": {}, "an address": redirect(), "a route": {Routing: true}} {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.New(t)
			change(t, ns, what)
			for _, want := range []bool{what.Loopback || what.Routing, false} {
				removed, err := Remove(t.Context(), ns)
				if err != nil || removed != want {
					t.Errorf("removed %v, error %v; want %v", removed, err, want)
				}
				wantRead(t, ns, "removed", iptables.Ruleset{})
			}
		})
	}
}
