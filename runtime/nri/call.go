package nri

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"

	"istio-pod-network-controller/internal/podnet"
)

// Errors of a handler that does not return in time, or panics.
var (
	errLate     = errors.New("the agent did not finish in time")
	errPanicked = errors.New("the agent failed within; its log has the details")
)

// answer handles one call of the runtime. The runtime waits for it.
func (p *plugin) answer(ctx context.Context, call string, pod *api.PodSandbox) error {
	start := p.begin()
	defer p.end()
	v := p.guarded(func() verdict {
		outcome, err := p.judge(ctx, pod)
		return verdict{outcome: outcome, err: err}
	})
	if p.Observe != nil {
		p.Observe(call, v.outcome, time.Since(start))
	}
	return v.err
}

func (p *plugin) begin() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	return time.Now()
}

func (p *plugin) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls--
	p.ended = time.Now()
}

// awaitQuiet returns in a gap between the runtime's calls: disconnecting during a call lets the pod start without rules. If there is no
// gap longer than pause within lastCalls, any gap will do.
func (p *plugin) awaitQuiet() {
	began := time.Now()
	short, end := began.Add(lastCalls), began.Add(lastCalls+p.runtimeLimit())
	quiet := func(now time.Time) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.calls == 0 && (now.Sub(p.ended) > pause || now.After(short))
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for now := began; !quiet(now) && now.Before(end); {
		now = <-tick.C
	}
}

func (p *plugin) judge(ctx context.Context, pod *api.PodSandbox) (Outcome, error) {
	s, whose := p.sandbox(pod)
	if whose == theirs || whose == hosts && p.onHost(ctx, s) {
		return Passed, nil
	}
	if outcome, ok := p.known(s); ok {
		return outcome, nil
	}
	outcome, err := p.program(ctx, s)
	if err == nil {
		return outcome, nil
	}
	log := p.logOf(s).WithValues("sandbox", s.ID)
	switch {
	case errors.Is(err, podnet.ErrNoPod): // deleted while it was starting
		log.Info("pod refused", "reason", err.Error())
	case p.FailOpen:
		log.Error(err, "pod let through without its rules")
		if outcome == Refused {
			outcome = LetThrough
		}
		return outcome, nil
	default:
		log.Error(err, "pod refused")
	}
	return outcome, fmt.Errorf("istio-pod-network-controller refuses pod %s until its traffic can be redirected: %w", s.Pod(), err)
}

// program calls the handler with a part of the runtime's limit, and remembers the outcome. It returns in time and does not panic,
// whatever the handler does.
func (p *plugin) program(ctx context.Context, s podnet.Sandbox) (Outcome, error) {
	limit := p.runtimeLimit()
	ctx, cancel := context.WithTimeout(logr.NewContext(ctx, p.logOf(s)), part(share, limit))
	late := time.NewTimer(part(lateShare, limit))
	defer late.Stop()
	done := make(chan verdict, 1)
	go func() {
		defer cancel()
		done <- p.ask(ctx, s)
	}()
	select {
	case v := <-done:
		if v.err != nil {
			return v.outcome, v.err
		}
		return p.settle(s, v.asked), nil
	case <-late.C:
		return Late, errLate
	}
}

// verdict is the outcome of a handler.
type verdict struct {
	asked   bool
	outcome Outcome
	err     error
}

func (p *plugin) ask(ctx context.Context, s podnet.Sandbox) verdict {
	defer p.note(&run{began: time.Now()})()
	return p.guarded(func() verdict {
		asked, err := p.Handler.Ensure(ctx, s)
		return verdict{asked: asked, outcome: Refused, err: err}
	})
}

// guarded turns a panic into a refusal.
func (p *plugin) guarded(f func() verdict) (v verdict) {
	defer func() {
		if fault := recover(); fault != nil {
			p.log.Error(errPanicked, "handler panicked", "panic", fmt.Sprint(fault), "stack", string(debug.Stack()))
			v = verdict{outcome: Panicked, err: errPanicked}
		}
	}()
	return f()
}

// run is a handler that has not returned.
type run struct{ began time.Time }

func (p *plugin) note(r *run) (ended func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running[r] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.running, r)
	}
}

// live returns an error while a handler runs for longer than twice the runtime's limit.
func (p *plugin) live() error {
	limit := 2 * p.runtimeLimit()
	p.mu.Lock()
	defer p.mu.Unlock()
	for r := range p.running {
		if took := time.Since(r.began); took > limit {
			return fmt.Errorf("a call of the runtime is at work for %s; the runtime waits %s", took.Round(time.Second), limit/2)
		}
	}
	return nil
}

func part(share float64, limit time.Duration) time.Duration {
	return time.Duration(share * float64(limit))
}

// runtimeLimit returns how long the runtime waits for an answer. Runtimes with NRI older than 0.7 do not say; then it is NRI's default.
func (p *plugin) runtimeLimit() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if limit := p.limit(); limit > 0 {
		return limit
	}
	return api.DefaultPluginRequestTimeout
}

func (p *plugin) setLimit(limit func() time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = limit
}
