package routing

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/internal/kerneltest"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

func redirect() iptables.Ruleset { return iptables.Ruleset{Loopback: iptables.LoopbackAddrs()} }

func tproxy() iptables.Ruleset {
	return iptables.Ruleset{Loopback: iptables.LoopbackAddrs(), Routing: iptables.PolicyRoutes()}
}

func prepare(t *testing.T, ns *netns.NS, want iptables.Ruleset) Change {
	t.Helper()
	c, err := Prepare(ns, want)
	if err != nil {
		t.Fatal(err)
	}
	return c
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
	if diff := cmp.Diff(view(want), view(have)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", step, diff)
	}
}

// view is what a Ruleset has of interest here, as text.
func view(r iptables.Ruleset) (text []string) {
	for _, p := range r.Loopback {
		text = append(text, p.String())
	}
	for _, p := range r.Routing {
		text = append(text, p.String())
	}
	return text
}

// pieces counts what there is of routes of ours, whole or not.
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
	c := prepare(t, ns, tproxy())
	wantRead(t, ns, "prepared", tproxy())
	end(t, c.Finish())
	wantRead(t, ns, "finished", tproxy())
	c = prepare(t, ns, redirect())
	wantRead(t, ns, "prepared for rules that need no route", tproxy())
	end(t, c.Finish())
	wantRead(t, ns, "finished without the route", redirect())
	if n := pieces(t, ns); n != 0 {
		t.Errorf("%d pieces of a route are left", n)
	}
}

func TestUndoTakesBackWhatWasAddedOnly(t *testing.T) {
	ns := kerneltest.New(t)
	end(t, prepare(t, ns, tproxy()).Undo())
	wantRead(t, ns, "in a fresh namespace", iptables.Ruleset{})
	end(t, prepare(t, ns, tproxy()).Finish())
	for name, next := range map[string]iptables.Ruleset{"the same": tproxy(), "another": redirect()} {
		end(t, prepare(t, ns, next).Undo())
		wantRead(t, ns, name, tproxy())
	}
}

// An agent that was killed, or somebody else, leaves parts and doubles.
func TestPartsAreCompletedOrRemoved(t *testing.T) {
	for name, spoil := range map[string]func(n *namespace, h holding) error{
		"no rule":  func(n *namespace, h holding) error { return n.remove(h.rules, nil) },
		"no route": func(n *namespace, h holding) error { return n.remove(nil, h.routes) },
		"a second rule": func(n *namespace, h holding) error {
			double := h.rule()
			double.Priority = 99
			return n.RuleAdd(double)
		},
	} {
		for _, next := range []iptables.Ruleset{tproxy(), redirect()} {
			t.Run(fmt.Sprintf("%s of a route, %d wanted", name, len(next.Routing)), func(t *testing.T) {
				ns := kerneltest.New(t)
				end(t, prepare(t, ns, tproxy()).Finish())
				whole := pieces(t, ns)
				open(t, ns, func(n *namespace) error { return spoil(n, n.policy[0]) })
				wantRead(t, ns, "spoilt", redirect())
				end(t, prepare(t, ns, next).Finish())
				wantRead(t, ns, "mended", next)
				if n := pieces(t, ns); n != whole*len(next.Routing) {
					t.Errorf("%d pieces are there; there were %d", n, whole)
				}
			})
		}
	}
}

func TestRemoveTellsWhetherThereWasAnything(t *testing.T) {
	for name, what := range map[string]iptables.Ruleset{"nothing": {}, "an address": redirect(), "a route": {Routing: iptables.PolicyRoutes()}} {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.New(t)
			end(t, prepare(t, ns, what).Finish())
			for _, want := range []bool{len(view(what)) > 0, false} {
				removed, err := Remove(ns)
				if err != nil || removed != want {
					t.Errorf("removed %v, error %v; want %v", removed, err, want)
				}
				wantRead(t, ns, "removed", iptables.Ruleset{})
			}
		})
	}
}
