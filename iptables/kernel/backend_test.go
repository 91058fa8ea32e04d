package kernel

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/xtables"
	"istio-pod-network-controller/test/kerneltest"
)

func choiceOf(t *testing.T) Choice {
	t.Helper()
	c, err := NewChoice(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// allBackends are the three ways to program a namespace, each taking over from the others.
func allBackends(t *testing.T) map[string]Backend {
	t.Helper()
	for _, program := range []string{"iptables-nft-restore", "iptables-legacy-restore", "nft"} {
		kerneltest.ProgramPath(t, program)
	}
	c := choiceOf(t)
	return map[string]Backend{
		"nftables":        c.Nftables(t.Context()),
		"iptables nft":    c.Iptables(t.Context(), xtables.NFT),
		"iptables legacy": c.Iptables(t.Context(), xtables.Legacy),
	}
}

func namespaces(t *testing.T) Namespaces {
	t.Helper()
	in, err := NewNamespaces()
	if err != nil {
		t.Fatal(err)
	}
	return in
}

var errSome = errors.New("some error")

func at(ns *netns.NS) podnet.Place { return podnet.Place{Path: ns.Path()} }

func tproxyRules(t *testing.T) iptables.Ruleset {
	t.Helper()
	s := iptables.DefaultSpec()
	s.Mode, s.DNS, s.DropInvalid = iptables.ModeTProxy, iptables.DNSAll, true
	r, err := iptables.Rules(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func driftOf(t *testing.T, e Backend, ns *netns.NS, want iptables.Ruleset) (iptables.Drift, error) {
	t.Helper()
	found, err := e.Look(t.Context(), at(ns), &want)
	return found.Drift, err
}

// ours are the backends' marks in what a namespace holds.
func ours(t *testing.T, ns *netns.NS) (marks string) {
	t.Helper()
	err := ns.Inside(func() error {
		script := `nft list tables inet; for f in nft legacy; do for p in iptables ip6tables; do $p-$f-save 2>/dev/null | grep -q PODNET_ && echo $p-$f; done; done
ip rule | grep -o 'lookup 15006'; ip -o addr show lo | grep -o ::6; true`
		out, err := exec.CommandContext(t.Context(), "sh", "-c", script).Output()
		marks = strings.Join(strings.Fields(string(out)), " ")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return marks
}

func mustRun(t *testing.T, ns *netns.NS, script string) {
	t.Helper()
	err := ns.Inside(func() error { return exec.CommandContext(t.Context(), "sh", "-c", script).Run() })
	if err != nil {
		t.Fatal(err)
	}
}

// eachPair runs a test for every pair of backends: rules of the first are in a fresh namespace.
func eachPair(t *testing.T, test func(t *testing.T, ns *netns.NS, first, second string)) {
	t.Helper()
	all := allBackends(t)
	for first, e := range all {
		for second := range all {
			t.Run(first+", then "+second, func(t *testing.T) {
				ns := kerneltest.New(t)
				if _, err := e.Apply(t.Context(), at(ns), tproxyRules(t)); err != nil {
					t.Fatal(err)
				}
				test(t, ns, first, second)
			})
		}
	}
}

// A node that changes its backend changes that of the pods that run: the old rules go, once the new ones are in force, and
// what both need stays.
func TestABackendTakesOverFromEveryOther(t *testing.T) {
	want, beside := tproxyRules(t), " lookup 15006 ::6"
	marks := map[string]string{
		"nftables":     "table inet " + iptables.TableName + beside,
		"iptables nft": "iptables-nft ip6tables-nft" + beside, "iptables legacy": "iptables-legacy ip6tables-legacy" + beside,
	}
	eachPair(t, func(t *testing.T, ns *netns.NS, first, second string) {
		t.Helper()
		after := allBackends(t)[second]
		drift, err := driftOf(t, after, ns, want)
		if seen := strings.Contains(drift.String(), "+ rules of the "); err != nil || seen != (first != second) {
			t.Errorf("drift %s, error %v", drift, err)
		}
		for _, changes := range []bool{first != second, false} {
			out, err := after.Apply(t.Context(), at(ns), want)
			if got := ours(t, ns); err != nil || out.Changed() != changes || got != marks[second] {
				t.Errorf("changed %q, error %v, there is %q, want %q", out.Drift, err, got, marks[second])
			}
		}
		if drift, err := driftOf(t, after, ns, want); err != nil || len(drift) > 0 {
			t.Errorf("drift %s, error %v", drift, err)
		}
	})
}

// Whoever removes removes everything, of whichever backend it is.
func TestRemovalIsOfEveryBackend(t *testing.T) {
	eachPair(t, func(t *testing.T, ns *netns.NS, _, second string) {
		t.Helper()
		remover := allBackends(t)[second]
		for _, want := range []bool{true, false} {
			present, errPresent := remover.Present(t.Context(), at(ns))
			removed, errRemove := remover.Remove(t.Context(), at(ns))
			if present != want || removed != want || errPresent != nil || errRemove != nil {
				t.Errorf("present %v, removed %v, errors %v, %v", present, removed, errPresent, errRemove)
			}
		}
		if got := ours(t, ns); got != "" {
			t.Errorf("left %q", got)
		}
	})
}
