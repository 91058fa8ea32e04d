package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"istio-pod-network-controller/internal/podnet"
)

// Ensure makes one sandbox hold the rules that its pod asks for. Namespace, Name and UID of s must be set. Errors that callers tell
// apart: podnet.ErrNotReady and podnet.ErrGone (try again soon), podnet.ErrNoPod, and those for which Permanent is true (try again
// when the pod changes). After any other error the PodWatch tries again.
func (p *Programmer) Ensure(ctx context.Context, by Hook, s podnet.Sandbox) (Result, error) {
	result, err := p.ensure(ctx, by, s, ensureTimeout, "")
	p.requeueWhenDue(s)
	return result, err
}

// requeueWhenDue has the PodWatch visit a pod when it is due.
func (p *Programmer) requeueWhenDue(s podnet.Sandbox) {
	if wait := p.schedule().wait(p.Ledger.Of(s.UID)); wait > 0 && p.requeue != nil {
		p.requeue(s, wait)
	}
}

// ensure is Ensure with a limit of the time in the kernel. creates is the name of the container that the runtime is about to make, or "".
func (p *Programmer) ensure(ctx context.Context, by Hook, s podnet.Sandbox, limit time.Duration, creates string) (result Result, err error) {
	defer func(start time.Time) { p.Metrics.ensured(by, result, err, time.Since(start)) }(time.Now())
	ticket := p.turns.join(s.UID)
	defer ticket.leave()
	for {
		ticket.mark()
		if result, err = p.attempt(ctx, visit{by: by, sandbox: s, limit: limit, turn: ticket, creates: creates}); !errors.Is(err, errOvertaken) {
			return result, err
		}
		if ctx.Err() != nil {
			return Failed, fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}
