package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

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
	times
	processes int64 // of all runs
}

// steps measures what an agent does to a pod's rules, by each backend, against the least transaction in a fresh namespace: a table with a chain
// with a rule.
func (b bench) steps(ctx context.Context) ([]row, error) {
	var used opened
	defer used.close()
	var started atomic.Int64
	choice, err := kernel.NewChoice(func(string, time.Duration) { started.Add(1) }, nil)
	if err != nil {
		return nil, err
	}
	all := []*step{{
		name: "one transaction of one rule", runs: b.runs, prepare: used.renew,
		run: func(context.Context) error {
			return oneRule(used.fresh, unix.NF_INET_LOCAL_OUT, iptables.DefaultSpec().OutboundPort)
		},
	}}
	for _, agent := range []kernel.Backend{choice.Nftables(ctx), choice.Iptables(ctx, xtables.NFT)} {
		more, err := b.life(ctx, agent, &used)
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
	before := started.Load()
	wall, cpu, err := timed(func() error { return s.run(ctx) })
	s.wall, s.cpu, s.processes = append(s.wall, wall), append(s.cpu, cpu), s.processes+started.Load()-before
	return err
}

// stepRows compares all steps with the first.
func stepRows(all []*step) (rows []row) {
	for _, s := range all[1:] {
		name := s.name + ", against " + all[0].name
		rows = append(rows,
			inRounds(name, "ms", s.wall, all[0].wall[:s.runs]),
			inRounds(name, "ms of CPU", s.cpu, all[0].cpu[:s.runs]))
		if s.processes > 0 {
			rows = append(rows, newRow(s.name+", processes", "count", float64(s.processes)/float64(s.runs), 0, "reported"))
		}
	}
	return rows
}

// life returns the steps of a pod's life: its rules are made, compared with and without what the agent remembers, and changed a little, also
// beside a long list.
func (b bench) life(ctx context.Context, agent kernel.Backend, used *opened) ([]*step, error) {
	ordinary := iptables.DefaultSpec()
	port := ordinary
	port.ExcludeOutboundPorts = append(slices.Clone(port.ExcludeOutboundPorts), 3306)
	kept, err := used.steady(ctx, agent, ordinary)
	if err != nil {
		return nil, err
	}
	onePort, err := used.alternately(ctx, agent, ordinary, port)
	if err != nil {
		return nil, err
	}
	oneCIDR, err := used.alternately(ctx, agent, excluding(b.cidrs), excluding(b.cidrs+1))
	if err != nil {
		return nil, err
	}
	fresh := func(ctx context.Context) error {
		return change(ctx, agent, podnet.Place{Path: used.fresh.Path()}, kept.rules)
	}
	look := func(ctx context.Context) error { return same(ctx, agent, kept) }
	ready := func(context.Context) error { return nil }
	of := func(what string) string { return agent.Name() + ": " + what }
	return []*step{
		{name: of("fresh rules"), runs: b.runs, prepare: used.renew, run: fresh},
		{name: of("no change, nothing was touched"), runs: b.runs, prepare: ready, run: look},
		{name: of("no change, but others made one"), runs: b.runs, prepare: func(context.Context) error { return touch(kept.NS) }, run: look},
		{name: of("one port more or less"), runs: b.runs, prepare: ready, run: onePort},
		{name: of(fmt.Sprintf("one CIDR more or less of %d", b.cidrs)), runs: b.few(), prepare: ready, run: oneCIDR},
	}, nil
}

// opened are the namespaces of a measurement. fresh is the one that a step uses alone.
type opened struct {
	fresh *netns.NS
	kept  []*netns.NS
}

// renew replaces the fresh namespace.
func (o *opened) renew(context.Context) (err error) {
	if o.fresh != nil {
		err = o.fresh.Close()
	}
	if err == nil {
		o.fresh, err = netns.New()
	}
	return err
}

// programmed is a namespace with rules.
type programmed struct {
	*netns.NS
	place podnet.Place
	rules iptables.Ruleset
}

// steady returns a namespace with rules that the agent remembers.
func (o *opened) steady(ctx context.Context, agent kernel.Backend, spec iptables.Spec) (at programmed, err error) {
	if at.rules, err = iptables.Rules(spec); err != nil {
		return at, err
	}
	if at.NS, err = netns.New(); err != nil {
		return at, err
	}
	o.kept = append(o.kept, at.NS)
	at.place.Path = at.Path()
	if at.place.Identity, err = agent.Identify(at.Path()); err != nil {
		return at, err
	}
	if err := change(ctx, agent, at.place, at.rules); err != nil {
		return at, err
	}
	return at, same(ctx, agent, at) // from here on it is remembered
}

// alternately returns a step that changes the rules of a namespace of its own from one set to the other, and back.
func (o *opened) alternately(ctx context.Context, agent kernel.Backend, one, other iptables.Spec) (func(ctx context.Context) error, error) {
	at, err := o.steady(ctx, agent, one)
	if err != nil {
		return nil, err
	}
	now := at.rules
	next, err := iptables.Rules(other)
	return func(ctx context.Context) error {
		now, next = next, now
		return change(ctx, agent, at.place, now)
	}, err
}

// change applies rules that are not in force.
func change(ctx context.Context, agent kernel.Backend, at podnet.Place, rules iptables.Ruleset) error {
	out, err := agent.Apply(ctx, at, rules)
	if err == nil && !out.Changed() {
		err = errors.New("nothing was applied")
	}
	return err
}

// same applies rules that are in force.
func same(ctx context.Context, agent kernel.Backend, at programmed) error {
	out, err := agent.Apply(ctx, at.place, at.rules)
	if err == nil && out.Changed() {
		err = fmt.Errorf("differed by %q", out.Drift)
	}
	return err
}

func (o *opened) close() {
	for _, ns := range append(o.kept, o.fresh) {
		if ns != nil {
			_ = ns.Close()
		}
	}
}
