package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// way is one way to put rules into a fresh namespace.
type way struct {
	name  string
	apply func(ctx context.Context, ns *netns.NS) error
	runs  int
}

func by(name string, b backend, rules iptables.Ruleset, runs int) way {
	return way{name, func(ctx context.Context, ns *netns.NS) error {
		out, err := b.Apply(ctx, ns.Path(), rules)
		if err == nil && !out.Changed() {
			err = errors.New("nothing was applied")
		}
		return err
	}, runs}
}

// times are what the runs of a way took, in milliseconds; cpu is of this process and its children.
type times struct{ wall, cpu []float64 }

func (t times) p50() float64 { return median(t.wall) }

func (t times) cpuEach() float64 {
	sum := 0.0
	for _, v := range t.cpu {
		sum += v
	}
	return sum / float64(len(t.cpu))
}

// inTurn measures each way as often as it says, one after the other, so that noise affects all of them.
func inTurn(ctx context.Context, ways []way) (map[string]times, error) {
	took := map[string]times{}
	for i := range slices.MaxFunc(ways, func(a, b way) int { return a.runs - b.runs }).runs {
		for _, w := range ways {
			if i >= w.runs {
				continue
			}
			wall, cpu, err := w.measure(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
			t := took[w.name]
			took[w.name] = times{append(t.wall, wall), append(t.cpu, cpu)}
		}
	}
	return took, nil
}

// measure applies the rules to a fresh namespace; the namespace itself is not counted.
func (w way) measure(ctx context.Context) (wall, cpu float64, err error) {
	ns, err := netns.New()
	if err != nil {
		return 0, 0, err
	}
	defer ns.Close() //nolint:errcheck // it is not used any more
	return timed(func() error { return w.apply(ctx, ns) })
}

// timed returns the milliseconds that a function takes, and those of the CPU.
func timed(f func() error) (wall, cpu float64, err error) {
	before, err := cpuTime()
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	if err := f(); err != nil {
		return 0, 0, err
	}
	wall = milliseconds(time.Since(start))
	after, err := cpuTime()
	return wall, milliseconds(after - before), err
}

// unchanged measures what it takes to find that the rules are there.
func unchanged(ctx context.Context, b backend, rules iptables.Ruleset, runs int) (float64, error) {
	ns, err := netns.New()
	if err != nil {
		return 0, err
	}
	defer ns.Close() //nolint:errcheck // it is not used any more
	var took []float64
	for i := range runs + 1 {
		start := time.Now()
		out, err := b.Apply(ctx, ns.Path(), rules)
		if err == nil && out.Changed() != (i == 0) {
			err = fmt.Errorf("apply %d found drift %q", i, out.Drift)
		}
		if err != nil {
			return 0, err
		}
		took = append(took, milliseconds(time.Since(start)))
	}
	return median(took[1:]), nil
}

// cpuTime is what this process and the children that it has waited for have used.
func cpuTime() (time.Duration, error) {
	sum := time.Duration(0)
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var usage syscall.Rusage
		if err := syscall.Getrusage(who, &usage); err != nil {
			return 0, fmt.Errorf("read CPU time: %w", err)
		}
		sum += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	return sum, nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

func median(v []float64) float64 { return quantile(v, 50) }

func quantile(v []float64, percent int) float64 {
	sorted := slices.Sorted(slices.Values(v))
	return sorted[len(sorted)*percent/100]
}
