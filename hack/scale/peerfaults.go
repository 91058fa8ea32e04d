package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// changed counts changes, and their effects on connections.
type changed struct{ made, past, failed, broken, inForce int }

// edits changes the rules of pods with traffic.
func (p *peersBench) edits(ctx context.Context) ([]row, error) {
	seen := map[*way]changed{}
	for _, w := range p.ways {
		if !w.edits {
			continue
		}
		var err error
		if seen[w], err = p.editUnderLoad(ctx, w); err != nil {
			return nil, fmt.Errorf("changes: %s: %w", w.name, err)
		}
	}
	var rows []row
	of := fmt.Sprintf("%d changes of the rules of a pod with traffic, ", p.times())
	for _, f := range []struct {
		name  string
		count func(changed) int
	}{
		{"in force afterwards", func(c changed) int { return c.inForce }},
		{"new connections", func(c changed) int { return c.made }},
		{"of them past the proxy", func(c changed) int { return c.past }},
		{"of them failed", func(c changed) int { return c.failed }},
		{"of 4 open connections broken", func(c changed) int { return c.broken }},
	} {
		for _, w := range p.ways {
			if w.edits {
				rows = append(rows, newRow(of+f.name+": "+w.name, "count", float64(f.count(seen[w])), 0, "reported"))
			}
		}
	}
	return rows, nil
}

func (p *peersBench) editUnderLoad(ctx context.Context, w *way) (c changed, err error) {
	m, err := p.programmed(ctx, w)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, p.end(ctx, w, m)) }()
	l, err := m.load(ctx)
	if err != nil {
		return c, err
	}
	var took []time.Duration
	for range p.times() {
		began := time.Now()
		if err := p.editOnce(ctx, w, m); err != nil {
			l.stop()
			return c, err
		}
		took = append(took, time.Since(began))
		if m.edited(ctx) == m.wanted() {
			c.inForce++
		}
	}
	l.stop()
	w.changeTakes = time.Duration(median(took, func(d time.Duration) float64 { return float64(d) }))
	c.made, c.past, c.failed, c.broken = int(l.made.Load()), int(l.past.Load()), int(l.failed.Load()), l.broken()
	return c, nil
}

// editOnce edits a pod's annotation, and has it followed. That a program refuses is no error of the measurement.
func (p *peersBench) editOnce(ctx context.Context, w *way, m *meshPod) error {
	if err := p.edit(ctx, m); err != nil {
		return err
	}
	_ = w.peer.change(ctx, m)
	return ctx.Err()
}

// programmed returns a new pod with rules.
func (p *peersBench) programmed(ctx context.Context, w *way) (*meshPod, error) {
	m, err := p.open(ctx, w)
	if err != nil {
		return nil, err
	}
	if w.startTakes, err = w.add(ctx, m); err == nil {
		err = errors.Join(p.settle(ctx, w, m), m.captured(ctx))
	}
	if err != nil {
		return nil, errors.Join(err, p.end(ctx, w, m))
	}
	return m, nil
}

// left counts pods by their state after a kill, and after the next run.
type left struct{ none, all, half, past, dead, never int }

// kills ends who applies rules at drawn points: while a new pod gets them, and while they are changed.
func (p *peersBench) kills(ctx context.Context) (rows []row, err error) {
	draw := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // repeatable numbers
	for _, w := range p.ways {
		if !w.edits {
			continue
		}
		var first, later left
		for range p.times() {
			if err := p.killFirst(ctx, w, draw, &first); err != nil {
				return rows, fmt.Errorf("killed at first: %s: %w", w.name, err)
			}
			if err := p.killLater(ctx, w, draw, &later); err != nil {
				return rows, fmt.Errorf("killed at a change: %s: %w", w.name, err)
			}
		}
		of := func(what string, n int) {
			rows = append(rows, newRow(fmt.Sprintf("killed %d times %s: %s", p.times(), what, w.name), "count", float64(n), 0, "reported"))
		}
		of("while a new pod gets its rules, it has none", first.none)
		of("while a new pod gets its rules, it has some", first.half)
		of("while a new pod gets its rules, it has all", first.all)
		if w.sameSandbox {
			of("while a new pod gets its rules, not captured after the next run", first.never)
		}
		of("while rules are changed, connections pass the proxy", later.past)
		of("while rules are changed, connections fail", later.dead)
		of("while rules are changed, not captured after the next run", later.never)
	}
	return rows, nil
}

func (p *peersBench) killFirst(ctx context.Context, w *way, draw *rand.Rand, seen *left) error {
	m, err := p.open(ctx, w)
	if err != nil {
		return err
	}
	err = w.cut(ctx, drawn(draw, w.startTakes), func(ctx context.Context) { _, _ = w.add(ctx, m) })
	if err == nil {
		seen.add(m.probe(ctx), len(m.streams()))
	}
	if w.sameSandbox {
		err = errors.Join(err, p.tryAgain(ctx, w, m, seen), p.end(ctx, w, m))
	} else { // the runtime makes another sandbox
		err = errors.Join(err, p.end(ctx, w, m), w.recover(ctx, nil))
	}
	return err
}

func (p *peersBench) killLater(ctx context.Context, w *way, draw *rand.Rand, seen *left) error {
	m, err := p.programmed(ctx, w)
	if err != nil {
		return err
	}
	err = w.cut(ctx, drawn(draw, w.changeTakes), func(ctx context.Context) { _ = p.editOnce(ctx, w, m) })
	if err == nil {
		seen.add(m.probe(ctx), len(m.streams()))
		err = p.tryAgain(ctx, w, m, seen)
	}
	return errors.Join(err, p.end(ctx, w, m))
}

func drawn(draw *rand.Rand, below time.Duration) time.Duration {
	return time.Duration(draw.Int64N(max(1, int64(below))))
}

// cut kills who does something, after a time.
func (w *way) cut(ctx context.Context, after time.Duration, do func(ctx context.Context)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		do(ctx)
	}()
	err := errors.Join(pause(ctx, after), w.kill())
	cancel()
	<-ended
	return err
}

// add counts what a pod is like by who answers its connections.
func (l *left) add(answers map[string]int, all int) {
	switch all {
	case answers[byProxy]:
		l.all++
	case answers[directly]:
		l.none++
	default:
		l.half++
	}
	if answers[directly] > 0 {
		l.past++
	}
	if answers[""] > 0 {
		l.dead++
	}
}

// tryAgain has who was killed work again in a pod, and counts pods that are not captured then.
func (p *peersBench) tryAgain(ctx context.Context, w *way, m *meshPod, seen *left) error {
	_ = w.recover(ctx, m) // it is seen
	if m.captured(ctx) != nil {
		seen.never++
	}
	return ctx.Err()
}
