package kernel

import (
	"context"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// countedDriver counts how often another backend's rules are looked for or removed.
type countedDriver struct {
	Driver
	looks *int
}

func (b countedDriver) Present(ctx context.Context, ns *netns.NS) (bool, error) {
	*b.looks++
	return b.Driver.Present(ctx, ns)
}

func (b countedDriver) Yield(ctx context.Context, ns *netns.NS) (bool, error) {
	*b.looks++
	return b.Driver.Yield(ctx, ns)
}

// racingDriver has somebody else write just before or after it.
type racingDriver struct {
	Driver
	before, after func()
}

func (b racingDriver) Apply(ctx context.Context, ns *netns.NS, want iptables.Ruleset) (iptables.Outcome, error) {
	if b.before != nil {
		b.before()
	}
	out, err := b.Driver.Apply(ctx, ns, want)
	if b.after != nil {
		b.after()
	}
	return out, err
}

// In the namespace of a pod that starts there is nothing to look for: neither when its rules are written, nor when its containers are
// made. Where there is anything else, whenever it came, all is looked for.
func TestNothingIsLookedForInANamespaceWithoutRules(t *testing.T) {
	const drop = "nft 'table inet x {\nchain c { type filter hook output priority -310; tcp dport 9 drop; }\n}'"
	for name, c := range map[string]struct {
		first, before, after string // what somebody else writes
		legacy               bool
		looks, preempted     bool
	}{
		"nothing else":              {},
		"a table":                   {first: "nft add table inet x", looks: true},
		"a table that is gone":      {first: "nft 'add table inet x; delete table inet x'", looks: true},
		"a rule that drops":         {first: drop, looks: true, preempted: true},
		"a legacy table":            {first: "iptables-legacy -A OUTPUT -j ACCEPT", legacy: true, looks: true},
		"a rule just before":        {before: drop, looks: true, preempted: true},
		"a rule just after":         {after: drop, looks: true, preempted: true},
		"a legacy table just after": {after: "iptables-legacy -A OUTPUT -j ACCEPT", legacy: true, looks: true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.legacy {
				kerneltest.ProgramPath(t, "iptables-legacy")
			}
			ns, looks := kerneltest.New(t), 0
			e := fresh(t, ns, &looks, c.before, c.after)
			if c.first != "" {
				mustRun(t, ns, c.first)
			}
			place := at(ns)
			place.Identity = idOf(t, e, ns.Path())
			want := tproxyRules(t)
			for i := range 3 {
				out, err := e.Apply(t.Context(), place, want)
				if err != nil || out.Changed() != (i == 0) || (len(out.Preempted) > 0) != c.preempted {
					t.Errorf("call %d: changed %q, preempted %q, error %v", i, out.Drift, out.Preempted, err)
				}
			}
			if (looks > 0) != (c.looks || place.Identity.Cookie == 0) { // without a cookie nothing is remembered
				t.Errorf("looked %d times for what others have left", looks)
			}
		})
	}
}

// fresh returns the nftables backend whose looks for others are counted, and beside whose first write somebody else writes.
func fresh(t *testing.T, ns *netns.NS, looks *int, before, after string) Backend {
	t.Helper()
	e := allBackends(t)[Nftables]
	for i := range e.others {
		e.others[i] = countedDriver{e.others[i], looks}
	}
	once := func(script string) func() {
		return func() {
			if script != "" {
				mustRun(t, ns, script)
				script = ""
			}
		}
	}
	e.chosen = racingDriver{e.chosen, once(before), once(after)}
	return e
}

// BenchmarkFirstApply measures the CPU time of the first programming of a fresh namespace.
func BenchmarkFirstApply(b *testing.B) {
	e, want := ordinary(b)
	used, n := time.Duration(0), 0
	for b.Loop() {
		ns := kerneltest.New(b)
		place := at(ns)
		var err error
		if place.Identity, err = e.Identify(ns.Path()); err != nil {
			b.Fatal(err)
		}
		before := processCPU(b)
		for range 2 { // for the sandbox, and for its container
			if _, err := e.Apply(b.Context(), place, want); err != nil {
				b.Fatal(err)
			}
		}
		used += processCPU(b) - before
		n++
	}
	b.ReportMetric(float64(used.Microseconds())/float64(n), "cpu-us/op")
}
