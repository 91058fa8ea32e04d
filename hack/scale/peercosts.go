package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// rounds is how often each way programs one pod, changes rules under load, and is killed.
const rounds = 20

// crowdPatience is how long pods that were refused are tried again.
const crowdPatience = 5 * time.Minute

// cost is the price of programming a pod, or many.
type cost struct {
	wait    time.Duration
	used    counts
	refused int // starts that were refused, and tried again
}

// starts measures one pod after the other, each way in turn.
func (p *peersBench) starts(ctx context.Context) (rows []row, err error) {
	took := map[*way][]cost{}
	for range p.times() {
		for _, w := range p.ways {
			c, err := p.startOne(ctx, w)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
			took[w] = append(took[w], c)
		}
	}
	for _, f := range []struct {
		name, unit string
		of         func(cost) float64
	}{
		{"a pod's start waits", "ms p50", func(c cost) float64 { return milliseconds(c.wait) }},
		{"CPU for a pod", "ms p50", func(c cost) float64 { return c.used.milliseconds(1) }},
		{"programs started for a pod", "count", func(c cost) float64 { return float64(c.used.programs) }},
		{"system calls for a pod", "count p50", func(c cost) float64 { return float64(c.used.calls) }},
	} {
		rows = append(rows, p.compare(f.name, f.unit, func(w *way) float64 { return median(took[w], f.of) })...)
	}
	return rows, nil
}

// compare returns a row of each way. The first way is what others are compared with.
func (p *peersBench) compare(name, unit string, of func(w *way) float64) (rows []row) {
	base := p.ways[0]
	for _, w := range p.ways {
		rows = append(rows, newRow(fmt.Sprintf("%s: %s, against %s", name, w.name, base.name), unit, of(w), of(base), "reported"))
	}
	return rows
}

func (p *peersBench) startOne(ctx context.Context, w *way) (c cost, err error) {
	m, err := p.open(ctx, w)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, p.end(ctx, w, m)) }()
	before, err := w.counts()
	if err != nil {
		return c, err
	}
	if c.wait, err = w.add(ctx, m); err != nil {
		return c, err
	}
	if err := p.settle(ctx, w, m); err != nil {
		return c, err
	}
	after, err := w.counts()
	c.used = after.minus(before)
	return c, errors.Join(err, m.captured(ctx))
}

// crowds measures many pods at once.
func (p *peersBench) crowds(ctx context.Context) ([]row, error) {
	took := map[*way]cost{}
	for _, w := range p.ways {
		c, err := p.crowdOf(ctx, w)
		if err != nil {
			return nil, fmt.Errorf("%d pods at once: %s: %w", p.crowd, w.name, err)
		}
		took[w] = c
	}
	of := fmt.Sprintf("%d pods at once, ", p.crowd)
	return slices.Concat(
		p.compare(of+"until the last has its rules", "s", func(w *way) float64 { return took[w].wait.Seconds() }),
		p.compare(of+"CPU for a pod", "ms", func(w *way) float64 { return took[w].used.milliseconds(p.crowd) }),
		p.compare(of+"starts refused and tried again", "count", func(w *way) float64 { return float64(took[w].refused) })), nil
}

func (p *peersBench) crowdOf(ctx context.Context, w *way) (c cost, err error) {
	pods := make([]*meshPod, p.crowd)
	defer func() {
		err = errors.Join(err, each(ctx, len(pods), func(ctx context.Context, i int) error {
			if pods[i] == nil {
				return nil
			}
			return p.end(ctx, w, pods[i])
		}))
	}()
	err = each(ctx, len(pods), func(ctx context.Context, i int) (err error) {
		pods[i], err = p.open(ctx, w)
		return err
	})
	if err != nil {
		return c, err
	}
	before, err := w.counts()
	if err != nil {
		return c, err
	}
	began := time.Now()
	var refused atomic.Int64
	group, inner := errgroup.WithContext(ctx)
	for _, m := range pods {
		group.Go(func() error {
			_, err := w.add(inner, m)
			for ; err != nil && inner.Err() == nil && time.Since(began) < crowdPatience; _, err = w.add(inner, m) { // the kubelet tries again, too
				refused.Add(1)
			}
			return err
		})
	}
	err = group.Wait()
	c.wait, c.refused = time.Since(began), int(refused.Load())
	if err := errors.Join(err, p.settle(ctx, w, pods...)); err != nil {
		return c, err
	}
	after, err := w.counts()
	c.used = after.minus(before)
	for _, m := range pods {
		err = errors.Join(err, m.captured(ctx))
	}
	return c, err
}
