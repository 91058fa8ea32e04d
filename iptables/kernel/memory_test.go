package kernel

import (
	"io"
	"os/exec"
	"testing"
	"time"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/routing"
	"istio-pod-network-controller/test/kerneltest"
)

// needCookie ends a test of what is remembered about a namespace: without a cookie that is nothing.
func needCookie(t *testing.T, id podnet.Identity) {
	t.Helper()
	if id.Cookie == 0 {
		kerneltest.SkipOrFail(t, "this kernel has no SO_NETNS_COOKIE: it is older than Linux 5.14")
	}
}

// Everything that may change the result of a comparison leads to a new one.
func TestWhatHasNotChangedIsNotComparedAgain(t *testing.T) {
	kerneltest.ProgramPath(t, "iptables-legacy")
	ns, want := kerneltest.New(t), iptables.Ruleset{Loopback: true}
	mustRun(t, ns, "ip addr add ::6/128 dev lo && nft add table inet before")
	applied := 0
	e := New(namespaces(t), fakeDriver{present: true, unchanged: true, apply: func(string) error { applied++; return nil }})
	place := podnet.Place{Path: ns.Path(), Identity: idOf(t, e, ns.Path())}
	needCookie(t, place.Identity)
	apply := func() {
		t.Helper()
		if _, err := e.Apply(t.Context(), place, want); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Duration(0)
	e.memory.now = func() time.Time { return time.Now().Add(past) }
	apply()
	for _, c := range []struct {
		name   string
		change func()
		after  time.Duration
	}{
		{name: "a table of others", change: func() { mustRun(t, ns, "nft add table inet x") }},
		{name: "a legacy rule", change: func() { mustRun(t, ns, "iptables-legacy -A INPUT -j ACCEPT") }, after: noLegacyAge},
		{name: "other rules that are wanted", change: func() { want.Chains = []iptables.Chain{{Name: "outbound"}} }},
	} {
		before := applied
		past += noLegacyAge * 2 / 3
		for range 2 { // the second looks for no legacy table
			apply()
		}
		if applied != before {
			t.Errorf("before %s: nothing has changed, and the rules were compared", c.name)
		}
		c.change()
		past += c.after
		if apply(); applied != before+1 {
			t.Errorf("%s: the rules were not compared", c.name)
		}
	}
	before := applied
	for range 2 {
		apply()
		past = max(past, 3*legacyAge)
	}
	if applied != before+1 {
		t.Errorf("with tables that count no changes, the rules were compared %d times in a minute and a moment", applied-before)
	}
	mustRun(t, ns, "ip addr del ::6/128 dev lo")
	before = applied
	apply()
	if apply(); applied != before+2 {
		t.Errorf("without an address that is wanted, the rules were compared %d times in two calls", applied-before)
	}
}

// Rules of others that decide before ours are reported as long as they are there, and left alone.
func TestPreemptionIsReported(t *testing.T) {
	const drop = "nft 'table inet x {\nchain c { type filter hook output priority -310; tcp dport 9 drop; }\n}'"
	for name, e := range allBackends(t) {
		ns, want := kerneltest.New(t), tproxyRules(t)
		place := podnet.Place{Path: ns.Path(), Identity: idOf(t, e, ns.Path())}
		for _, step := range []struct {
			script string
			lines  int
		}{{"true", 0}, {"true", 0}, {drop, 1}, {"true", 1}, {"true", 1}, {"nft delete table inet x", 0}} {
			mustRun(t, ns, step.script)
			out, err := e.Apply(t.Context(), place, want)
			if err != nil || len(out.Preempted) != step.lines {
				t.Errorf("%s, after %s: reported %q, error %v", name, step.script, out.Preempted, err)
			}
		}
	}
}

// A table that a process owns goes with its owner, and the kernel does not count that as a change.
func TestPreemptionByATableThatGoesWithItsOwnerIsReportedNoLonger(t *testing.T) {
	e, ns, want := choiceOf(t).Nftables(t.Context()), kerneltest.New(t), tproxyRules(t)
	place := podnet.Place{Path: ns.Path(), Identity: idOf(t, e, ns.Path())}
	preempted := func() int {
		out, err := e.Apply(t.Context(), place, want)
		if err != nil {
			t.Fatal(err)
		}
		return len(out.Preempted)
	}
	preempted()
	kerneltest.NeedOwnedTables(t)
	owner := exec.CommandContext(t.Context(), "nft", "-i")
	in, err := owner.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Inside(owner.Start); err != nil {
		t.Fatal(err)
	}
	const rules = "add table inet x { flags owner; }\nadd chain inet x c { type filter hook output priority -310; policy drop; }\n"
	if _, err := io.WriteString(in, rules); err != nil {
		t.Fatal(err)
	}
	kerneltest.Eventually(t, "the table is reported", func() bool { return preempted() == 1 })
	preempted()
	_ = in.Close()
	_ = owner.Wait()
	if n := preempted(); n > 0 {
		t.Errorf("%d lines about a table that is gone", n)
	}
}

// With iptables, what follows our jump in a built-in chain comes after our rules, and what is in front of it does not stay there.
func TestWhatFollowsOurJumpIsNotReported(t *testing.T) {
	for name, program := range map[string]string{"iptables nft": "iptables-nft", "iptables legacy": "iptables-legacy"} {
		e, ns, want := allBackends(t)[name], kerneltest.New(t), tproxyRules(t)
		for _, script := range []string{
			"true", program + " -t nat -A OUTPUT -p tcp -j REDIRECT --to-ports 9; " + program + " -t mangle -A PREROUTING -p tcp -j DROP",
			program + " -t nat -I OUTPUT -p tcp -j REDIRECT --to-ports 9; " + program + " -t mangle -I PREROUTING -p tcp -j DROP",
		} {
			mustRun(t, ns, script)
			if out, err := e.Apply(t.Context(), at(ns), want); err != nil || len(out.Preempted) > 0 {
				t.Errorf("%s, after %s: reported %q, error %v", name, script, out.Preempted, err)
			}
		}
	}
}

// Where no rule needs a route, what was left of a mode that did is found within a minute. Where one does, it is found at once.
func TestRoutesAreComparedAsOftenAsTheyMatter(t *testing.T) {
	for name, c := range map[string]struct {
		there bool
		after time.Duration
	}{
		"REDIRECT": {there: false, after: routesAge},
		"TPROXY":   {there: true},
	} {
		ns, want := kerneltest.New(t), iptables.Ruleset{Routing: c.there}
		mustRun(t, ns, "nft add table inet before")
		change := func(want iptables.Ruleset) {
			if err := routing.Around(ns, want, func() error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		change(want)
		applied, past := 0, time.Duration(0)
		e := New(namespaces(t), fakeDriver{present: true, unchanged: true, apply: func(string) error { applied++; return nil }})
		e.memory.now = func() time.Time { return time.Now().Add(past) }
		place := podnet.Place{Path: ns.Path(), Identity: idOf(t, e, ns.Path())}
		needCookie(t, place.Identity)
		apply := func() (compared int) {
			t.Helper()
			before := applied
			if _, err := e.Apply(t.Context(), place, want); err != nil {
				t.Fatal(err)
			}
			return applied - before
		}
		apply()
		change(iptables.Ruleset{Routing: !c.there})
		if n := apply(); n != 0 && c.after > 0 {
			t.Errorf("%s: compared at once", name)
		}
		past = c.after
		if apply() == 0 {
			t.Errorf("%s: not compared after %s", name, c.after)
		}
	}
}
