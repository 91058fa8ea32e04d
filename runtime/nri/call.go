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
	v := p.recovered(func() verdict {
		outcome, err := p.decide(ctx, call, pod)
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
	p.openCalls++
	return time.Now()
}

func (p *plugin) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.openCalls--
	p.lastCallEnd = time.Now()
}

// awaitQuiet returns in a gap between the runtime's calls: disconnecting during a call lets the pod start without rules. If there is no
// gap longer than quietGap within maxQuietGapWait, any gap will do.
func (p *plugin) awaitQuiet() {
	began := time.Now()
	short, end := began.Add(maxQuietGapWait), began.Add(maxQuietGapWait+p.runtimeLimit())
	quiet := func(now time.Time) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.openCalls == 0 && (now.Sub(p.lastCallEnd) > quietGap || now.After(short))
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for now := began; !quiet(now) && now.Before(end); {
		now = <-tick.C
	}
}

func (p *plugin) decide(ctx context.Context, call string, pod *api.PodSandbox) (Outcome, error) {
	s, treatment := p.readEvent(pod)
	if treatment == pass || treatment == hostNetwork && p.isOnHostNetwork(ctx, s) {
		return Passed, nil
	}
	if outcome, ok := p.outcomeOf(s); ok {
		return outcome, nil
	}
	outcome, err := p.program(ctx, s)
	if err == nil {
		return outcome, nil
	}
	log := p.logOf(s).WithValues("sandbox", s.ID)
	switch {
	case call == runPodSandbox:
		log.Info("sandbox not programmed yet", "reason", err.Error())
		if outcome == Refused {
			outcome = Postponed
		}
	case errors.Is(err, podnet.ErrPodsUnknown) && p.hasRun(s.ID):
		log.Info("container of a pod that was started before passes", "reason", err.Error())
		return Passed, nil
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
	ctx, cancel := context.WithTimeout(logr.NewContext(ctx, p.logOf(s)), part(handlerShare, limit))
	late := time.NewTimer(part(answerShare, limit))
	defer late.Stop()
	done := make(chan verdict, 1)
	go func() {
		defer cancel()
		done <- p.callHandler(ctx, s)
	}()
	select {
	case v := <-done:
		if v.err != nil {
			return v.outcome, v.err
		}
		return p.remember(s, v.asked), nil
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

func (p *plugin) callHandler(ctx context.Context, s podnet.Sandbox) verdict {
	defer p.track(&handlerCall{began: time.Now()})()
	return p.recovered(func() verdict {
		asked, err := p.Handler.Ensure(ctx, s)
		return verdict{asked: asked, outcome: Refused, err: err}
	})
}

// recovered turns a panic into a refusal.
func (p *plugin) recovered(f func() verdict) (v verdict) {
	defer func() {
		if panicked := recover(); panicked != nil {
			p.log.Error(errPanicked, "handler panicked", "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
			v = verdict{outcome: Panicked, err: errPanicked}
		}
	}()
	return f()
}

// handlerCall is a handler that has not returned.
type handlerCall struct{ began time.Time }

func (p *plugin) track(call *handlerCall) (ended func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handlerCalls[call] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.handlerCalls, call)
	}
}

// live returns an error while a handler runs for longer than twice the runtime's limit.
func (p *plugin) live() error {
	limit := 2 * p.runtimeLimit()
	p.mu.Lock()
	defer p.mu.Unlock()
	for r := range p.handlerCalls {
		if took := time.Since(r.began); took > limit {
			return fmt.Errorf("a call of the runtime is at work for %s; the runtime waits %s", took.Round(time.Second), limit/2)
		}
	}
	return nil
}

func part(fraction float64, limit time.Duration) time.Duration {
	return time.Duration(fraction * float64(limit))
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
