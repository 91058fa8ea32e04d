package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// checkTimeout bounds one readiness check.
const checkTimeout = 2 * time.Second

// readiness is the list of what the agent needs to look after pods. /readyz names each part that fails; the startup taint is removed when
// all pass that pods need. Parts must be added before anything is served.
type readiness struct {
	parts     []part
	liveCheck func(context.Context) error // looks at this process only; nil: there is none
}

// part is one check. note, which may be nil, adds something to the name in the summary.
type part struct {
	name      string
	check     func(context.Context) error
	note      func() string
	forPeople bool // pods do not need it: a node does not keep its startup taint for it
}

func (r *readiness) add(parts ...part) { r.parts = append(r.parts, parts...) }

// live returns an error when only a restart may help: the kubelet then restarts the agent.
func (r *readiness) live(ctx context.Context) error {
	if r.liveCheck == nil {
		return nil
	}
	return r.liveCheck(ctx)
}

// summary returns the names of the parts, with their notes.
func (r *readiness) summary() string {
	words := make([]string, 0, len(r.parts))
	for _, p := range r.parts {
		word := p.name
		if p.note != nil && p.note() != "" {
			word += ": " + p.note()
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

// check runs all checks at once, and returns an error that names each part that fails.
func (r *readiness) check(ctx context.Context) error { return errors.Join(r.failing(ctx)...) }

// serves does the same with what pods need.
func (r *readiness) serves(ctx context.Context) error {
	parts := slices.DeleteFunc(slices.Clone(r.parts), func(p part) bool { return p.forPeople })
	return (&readiness{parts: parts}).check(ctx)
}

// started returns a check that passes once all checks do, and after patienceEnds in any case: the kubelet kills an agent whose startup probe
// never passes, and must not kill an agent that waits for the runtime or the API server.
func (r *readiness) started(patienceEnds time.Time) func(context.Context) error {
	return func(ctx context.Context) error {
		if time.Now().After(patienceEnds) {
			return nil
		}
		return r.check(ctx)
	}
}

// failing runs all checks at once, and returns an error for each that fails.
func (r *readiness) failing(ctx context.Context) []error {
	errs := make([]error, len(r.parts))
	var wg sync.WaitGroup
	for i, p := range r.parts {
		wg.Go(func() {
			if err := p.bounded(ctx); err != nil {
				errs[i] = fmt.Errorf("%s: %w", p.name, err)
			}
		})
	}
	wg.Wait()
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

func (p part) bounded(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return p.check(ctx)
}
