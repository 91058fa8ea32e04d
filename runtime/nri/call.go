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

// answer handles one call of the runtime, about a container or a whole sandbox (""). The runtime waits for it.
func (p *plugin) answer(ctx context.Context, call string, pod *api.PodSandbox, container string) error {
	start := p.calls.begin()
	defer p.calls.end()
	v := p.decide(ctx, call, pod, container)
	if p.Observe != nil {
		p.Observe(call, v.outcome, time.Since(start))
	}
	return v.err
}

// decide returns the answer to a call about a sandbox.
func (p *plugin) decide(ctx context.Context, call string, pod *api.PodSandbox, container string) (v verdict) {
	defer p.contain(&v)
	s, treatment := p.readEvent(pod)
	if treatment == pass || treatment == hostNetwork && p.isOnHostNetwork(ctx, s) {
		return verdict{outcome: Passed}
	}
	outcome, ok := p.announced.outcomeOf(s)
	if v.outcome = outcome; !ok {
		v = p.program(ctx, s)
	}
	if v.err == nil {
		p.creating(ctx, s, v.outcome, container)
		return v
	}
	log := p.logOf(s).WithValues("sandbox", s.ID)
	switch {
	case call == runPodSandbox:
		log.Info("sandbox not programmed yet", "reason", v.err.Error())
		if v.outcome == Refused {
			v.outcome = Postponed
		}
	case errors.Is(v.err, podnet.ErrPodsUnknown) && p.announced.hasRun(s.ID):
		log.Info("container of a pod that was started before passes", "reason", v.err.Error())
		return verdict{outcome: Passed}
	case errors.Is(v.err, podnet.ErrNoPod): // deleted while it was starting
		log.Info("pod refused", "reason", v.err.Error())
	case p.FailOpen:
		log.Error(v.err, "pod let through without its rules")
		if v.outcome == Refused {
			v.outcome = LetThrough
		}
		return verdict{outcome: v.outcome}
	default:
		log.Error(v.err, "pod refused")
	}
	v.err = fmt.Errorf("istio-pod-network-controller refuses pod %s until its traffic can be redirected: %w", s.Pod(), v.err)
	return v
}

// program calls the handler with a part of the runtime's limit, and remembers the outcome. It returns in time and does not panic,
// whatever the handler does.
func (p *plugin) program(ctx context.Context, s podnet.Sandbox) verdict {
	v := p.inTime(ctx, s, func(ctx context.Context) verdict { return p.callHandler(ctx, s) })
	if v.err == nil {
		p.announced.add(s, v.outcome)
	}
	return v
}

// creating says that a container of a sandbox with rules is made. What the handler does then is no reason to refuse the container.
func (p *plugin) creating(ctx context.Context, s podnet.Sandbox, outcome Outcome, container string) {
	if p.Creating == nil || outcome != Programmed || container == "" {
		return
	}
	v := p.inTime(ctx, s, func(ctx context.Context) (v verdict) {
		defer p.calls.track()()
		defer p.contain(&v)
		v.err = p.Creating(ctx, s, container)
		return v
	})
	if v.err != nil {
		p.logOf(s).Info("connections do not wait for the pod's proxy", "container", container, "reason", v.err.Error())
	}
}

// inTime calls f with a part of the runtime's limit, and returns in time, whatever f does.
func (p *plugin) inTime(ctx context.Context, s podnet.Sandbox, f func(ctx context.Context) verdict) verdict {
	limit := p.calls.runtimeLimit()
	ctx, cancel := context.WithTimeout(logr.NewContext(ctx, p.logOf(s)), part(handlerShare, limit))
	late := time.NewTimer(part(answerShare, limit))
	defer late.Stop()
	done := make(chan verdict, 1)
	go func() {
		defer cancel()
		done <- f(ctx)
	}()
	select {
	case v := <-done:
		return v
	case <-late.C:
		return verdict{Late, errLate}
	}
}

// verdict is the outcome of a call, and the error that the runtime gets.
type verdict struct {
	outcome Outcome
	err     error
}

func (p *plugin) callHandler(ctx context.Context, s podnet.Sandbox) (v verdict) {
	defer p.calls.track()()
	defer p.contain(&v)
	switch asked, err := p.Handler.Ensure(ctx, s); {
	case err != nil:
		return verdict{Refused, err}
	case asked:
		return verdict{Programmed, nil}
	}
	return verdict{Passed, nil}
}

// contain makes a panic a refusal. It is deferred.
func (p *plugin) contain(v *verdict) {
	if panicked := recover(); panicked != nil {
		p.log.Error(errPanicked, "handler panicked", "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
		*v = verdict{Panicked, errPanicked}
	}
}

func part(fraction float64, limit time.Duration) time.Duration {
	return time.Duration(fraction * float64(limit))
}
