package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/hack/bench/table"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/iptables/xtables"
)

// traffic is how much is measured for each set of rules and direction: in so many rounds, so many connections and requests.
type traffic struct{ rounds, connections, requests int }

// direction is traffic of one kind. With rules it ends at a port of the proxy, without at the application or the world.
type direction struct {
	name string
	to   netip.Addr
	hook uint32
	port uint16
	from func(pair) *netns.NS
}

func directions() []direction {
	return []direction{
		{"inbound", netip.MustParseAddr(podIP), unix.NF_INET_PRE_ROUTING, iptables.DefaultSpec().InboundPort, func(p pair) *netns.NS { return p.world }},
		{"outbound", netip.MustParseAddr(outsideIP), unix.NF_INET_LOCAL_OUT, iptables.DefaultSpec().OutboundPort, func(p pair) *netns.NS { return p.pod }},
	}
}

// rules is one kind of rules for a pod.
type rules struct {
	name  string
	write func(ctx context.Context, d direction, pod *netns.NS) error
}

// kinds returns all kinds of rules. The others are compared with the first.
func kinds(ctx context.Context) ([]rules, error) {
	choice, err := kernel.NewChoice(nil, nil)
	if err != nil {
		return nil, err
	}
	all := []rules{
		{"one redirect rule", func(_ context.Context, d direction, pod *netns.NS) error { return oneRule(pod, d.hook, d.port) }},
		{"no rules", nil},
	}
	redirected := fullSpec()
	redirected.Mode = iptables.ModeRedirect
	for _, backend := range []kernel.Backend{choice.Nftables(ctx), choice.Iptables(ctx, xtables.NFT)} {
		for _, set := range []struct {
			name string
			spec iptables.Spec
		}{{"REDIRECT default", iptables.DefaultSpec()}, {"REDIRECT full", redirected}, {"TPROXY full", fullSpec()}} {
			want, err := iptables.Rules(set.spec)
			if err != nil {
				return nil, err
			}
			all = append(all, rules{set.name + " by " + backend.Name(), func(ctx context.Context, _ direction, pod *netns.NS) error {
				return apply(ctx, backend, podnet.Place{Path: pod.Path()}, want, true)
			}})
		}
	}
	return all, nil
}

// packets measures what the rules cost packets: the CPU time of a connection, and of a request on an open one, through each kind of rules in
// turn, against one redirect rule.
func (b bench) packets(ctx context.Context) (rows []table.Row, err error) {
	kinds, err := kinds(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range directions() {
		more, err := d.compare(ctx, kinds, b.traffic)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.name, err)
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// compare measures one direction.
func (d direction) compare(ctx context.Context, kinds []rules, much traffic) (rows []table.Row, err error) {
	lanes := make([]*lane, len(kinds))
	for i, k := range kinds {
		if lanes[i], err = d.lane(ctx, k); err != nil {
			return nil, fmt.Errorf("%s: %w", k.name, err)
		}
		defer lanes[i].close()
	}
	for range much.rounds {
		for i, l := range lanes {
			if err := l.round(much); err != nil {
				return nil, fmt.Errorf("%s: %w", kinds[i].name, err)
			}
		}
	}
	for i, l := range lanes[1:] {
		of := kinds[i+1].name + ", against " + kinds[0].name
		rows = append(rows,
			table.InRounds(d.name+", a connection, "+of, "us of CPU", l.connection, lanes[0].connection),
			table.InRounds(d.name+", a request on an open connection, "+of, "us of CPU", l.request, lanes[0].request))
	}
	return rows, nil
}

// lane is a pod with one kind of rules, its clients and the listener that they reach. connection and request are the CPU time that each takes,
// in microseconds, of each round.
type lane struct {
	pair
	direction
	listener            int
	connection, request []float64
}

func (d direction) lane(ctx context.Context, kind rules) (_ *lane, err error) {
	p, err := newPair(ctx)
	if err != nil {
		return nil, err
	}
	at, port := p.pod, int(d.port)
	if kind.write != nil {
		err = kind.write(ctx, d, p.pod)
	} else if port = appPort; d.from(p) == p.pod {
		at = p.world
	}
	l := &lane{pair: p, direction: d}
	if err == nil {
		l.listener, err = listen(at, port)
	}
	if err != nil {
		p.close()
	}
	return l, err
}

func (l *lane) close() {
	_ = unix.Close(l.listener)
	l.pair.close()
}

// round measures on one thread for both ends, and on one CPU: nobody waits for another thread, and all that the kernel does for the packets it
// does on that thread's account.
func (l *lane) round(much traffic) error {
	return l.from(l.pair).Inside(func() error {
		if err := pin(); err != nil {
			return err
		}
		if err := l.connect(1 + much.connections/10); err != nil { // the thread is new, and its caches are cold
			return err
		}
		each, err := threadTime(much.connections, l.connect)
		if err != nil {
			return err
		}
		l.connection = append(l.connection, each)
		client, server, err := l.open()
		if err != nil {
			return err
		}
		each, err = threadTime(much.requests, func(n int) error { return ask(client, server, n) })
		l.request = append(l.request, each)
		return errors.Join(err, abort(client), unix.Close(server))
	})
}

// connect opens and closes connections.
func (l *lane) connect(n int) error {
	for range n {
		client, server, err := l.open()
		if err == nil {
			err = errors.Join(abort(client), unix.Close(server))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// open returns both ends of a new connection. Only the expected listener's are accepted, so rules that do not redirect are an error.
func (l *lane) open() (client, server int, err error) {
	if client, err = connect(l.to); err != nil {
		return 0, 0, err
	}
	if server, err = accept(l.listener); err != nil {
		return 0, 0, errors.Join(err, abort(client))
	}
	return client, server, nil
}

// ask sends requests and answers them.
func ask(client, server, n int) error {
	message := make([]byte, 64)
	for range n {
		err := errors.Join(whole(unix.Write, client, message), whole(unix.Read, server, message), whole(unix.Write, server, message), whole(unix.Read, client, message))
		if err != nil {
			return fmt.Errorf("make a request: %w", err)
		}
	}
	return nil
}

// pin keeps the calling thread on one CPU.
func pin() error {
	var allowed, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return err
	}
	for cpu := range len(allowed) * 64 {
		if allowed.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	return unix.SchedSetaffinity(0, &one)
}

// threadTime returns the microseconds of CPU that the calling thread takes for each of n. getrusage would leave out what was used since the last
// tick of the kernel.
func threadTime(n int, f func(n int) error) (each float64, err error) {
	var before, after unix.Timespec
	errBefore := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &before)
	err = f(n)
	errAfter := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &after)
	return float64(after.Nano()-before.Nano()) / 1000 / float64(n), errors.Join(errBefore, err, errAfter)
}
