package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// checkTimeout bounds one readiness check.
const checkTimeout = 2 * time.Second

// readiness is what the agent needs to look after pods, part by part. /readyz tells of each that is not there, and the startup taint
// goes when all are there. Parts are added before anything is served.
type readiness struct {
	parts []part
	alive []func(context.Context) error
}

// part has a note, which may be nil, for what its name does not tell when the check is passed.
type part struct {
	name  string
	check func(context.Context) error
	note  func() string
}

func (r *readiness) add(name string, check func(context.Context) error) {
	r.parts = append(r.parts, part{name: name, check: check})
}

func (r *readiness) addNoted(name string, check func(context.Context) error, note func() string) {
	r.parts = append(r.parts, part{name: name, check: check, note: note})
}

// addLive adds a reason to start the agent anew.
func (r *readiness) addLive(check func(context.Context) error) { r.alive = append(r.alive, check) }

// live fails where only a new start may help. It asks nobody outside of the process.
func (r *readiness) live(ctx context.Context) error {
	var errs []error
	for _, check := range r.alive {
		errs = append(errs, check(ctx))
	}
	return errors.Join(errs...)
}

// summary lists the parts, with their notes.
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

// check looks at all parts at once, and names each that is missing.
func (r *readiness) check(ctx context.Context) error {
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
	return errors.Join(errs...)
}

func (p part) bounded(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return p.check(ctx)
}
