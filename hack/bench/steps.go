package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/hack/bench/table"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/iptables/xtables"
)

// step is one thing that is done to a namespace, so many times. Only run is measured.
type step struct {
	name         string
	runs         int
	prepare, run func(ctx context.Context) error
	wall, cpu    []float64 // milliseconds of each run; cpu is of this process and its children
	processes    int64     // of all runs
}

// steps measures what an agent does to a pod's rules, by each backend, against the least transaction in a fresh namespace.
func (b bench) steps(ctx context.Context) ([]table.Row, error) {
	var fresh fresh
	var started atomic.Int64
	choice, err := kernel.NewChoice(func(string, time.Duration) { started.Add(1) }, nil)
	if err != nil {
		return nil, err
	}
	all := []*step{{
		name: "one transaction of one rule", runs: b.runs, prepare: fresh.renew,
		run: func(context.Context) error {
			return oneRule(fresh.NS, unix.NF_INET_LOCAL_OUT, iptables.DefaultSpec().OutboundPort)
		},
	}}
	for _, agent := range []kernel.Backend{choice.Nftables(ctx), choice.Iptables(ctx, xtables.NFT)} {
		more, err := b.life(ctx, agent, &fresh)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", agent.Name(), err)
		}
		all = append(all, more...)
	}
	for i := range b.runs {
		for _, s := range all {
			if i >= s.runs {
				continue
			}
			if err := s.measure(ctx, &started); err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return stepRows(all), nil
}

// measure runs a step once.
func (s *step) measure(ctx context.Context, started *atomic.Int64) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	programs, began, before := started.Load(), time.Now(), cpuTime()
	err := s.run(ctx)
	s.wall, s.cpu = append(s.wall, milliseconds(time.Since(began))), append(s.cpu, milliseconds(cpuTime()-before))
	s.processes += started.Load() - programs
	return err
}

// cpuTime is what this process and the children that it has waited for have used.
func cpuTime() (sum time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var usage unix.Rusage
		_ = unix.Getrusage(who, &usage) // fails by a wrong argument only
		sum += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	return sum
}

func milliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// stepRows compares all steps with the first.
func stepRows(all []*step) (rows []table.Row) {
	for _, s := range all[1:] {
		name := s.name + ", against " + all[0].name
		rows = append(rows,
			table.InRounds(name, "ms", s.wall, all[0].wall[:s.runs]),
			table.InRounds(name, "ms of CPU", s.cpu, all[0].cpu[:s.runs]))
		if s.processes > 0 {
			rows = append(rows, table.New(s.name+", processes", "count", float64(s.processes)/float64(s.runs), 0))
		}
	}
	return rows
}

// life returns the steps of a pod's life: its rules are made, compared with and without what the agent remembers, and changed a little, also
// beside a long list.
func (b bench) life(ctx context.Context, agent kernel.Backend, fresh *fresh) ([]*step, error) {
	ordinary := iptables.DefaultSpec()
	port := ordinary
	port.ExcludeOutboundPorts = append(slices.Clone(port.ExcludeOutboundPorts), 3306)
	kept, errKept := steady(ctx, agent, ordinary)
	onePort, errPort := alternately(ctx, agent, ordinary, port)
	oneCIDR, errCIDR := alternately(ctx, agent, excluding(b.cidrs), excluding(b.cidrs+1))
	if err := errors.Join(errKept, errPort, errCIDR); err != nil {
		return nil, err
	}
	first := func(ctx context.Context) error {
		return apply(ctx, agent, podnet.Place{Path: fresh.Path()}, kept.rules, true)
	}
	look := func(ctx context.Context) error { return apply(ctx, agent, kept.place, kept.rules, false) }
	ready := func(context.Context) error { return nil }
	of := func(what string) string { return agent.Name() + ": " + what }
	return []*step{
		{name: of("fresh rules"), runs: b.runs, prepare: fresh.renew, run: first},
		{name: of("no change, nothing was touched"), runs: b.runs, prepare: ready, run: look},
		{name: of("no change, but others made one"), runs: b.runs, prepare: func(context.Context) error { return touch(kept.NS) }, run: look},
		{name: of("one port more or less"), runs: b.runs, prepare: ready, run: onePort},
		{name: of(fmt.Sprintf("one CIDR more or less of %d", b.cidrs)), runs: min(b.runs, max(3, b.runs/10)), prepare: ready, run: oneCIDR},
	}, nil
}

// fresh is the namespace that a step uses alone.
type fresh struct{ *netns.NS }

// renew replaces the namespace.
func (f *fresh) renew(context.Context) (err error) {
	if f.NS != nil {
		err = f.Close()
	}
	if err == nil {
		f.NS, err = netns.New()
	}
	return err
}

// programmed is a namespace with rules. It goes with this process.
type programmed struct {
	*netns.NS
	place podnet.Place
	rules iptables.Ruleset
}

// steady returns a namespace with rules that the agent remembers.
func steady(ctx context.Context, agent kernel.Backend, spec iptables.Spec) (at programmed, err error) {
	if at.rules, err = iptables.Rules(spec); err != nil {
		return at, err
	}
	if at.NS, err = netns.New(); err != nil {
		return at, err
	}
	at.place.Path = at.Path()
	if at.place.Identity, err = agent.Identify(at.Path()); err != nil {
		return at, err
	}
	if err := apply(ctx, agent, at.place, at.rules, true); err != nil {
		return at, err
	}
	return at, apply(ctx, agent, at.place, at.rules, false) // from here on it is remembered
}

// alternately returns a step that changes the rules of a namespace of its own from one set to the other, and back.
func alternately(ctx context.Context, agent kernel.Backend, one, other iptables.Spec) (func(ctx context.Context) error, error) {
	at, err := steady(ctx, agent, one)
	if err != nil {
		return nil, err
	}
	now := at.rules
	next, err := iptables.Rules(other)
	return func(ctx context.Context) error {
		now, next = next, now
		return apply(ctx, agent, at.place, now, true)
	}, err
}

// apply has the agent apply rules, and returns an error unless they were in force or not, as expected.
func apply(ctx context.Context, agent kernel.Backend, at podnet.Place, rules iptables.Ruleset, changes bool) error {
	out, err := agent.Apply(ctx, at, rules)
	if err == nil && out.Changed() != changes {
		err = fmt.Errorf("changed %t, by %q", out.Changed(), out.Drift)
	}
	return err
}
