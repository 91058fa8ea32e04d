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
// goes when all are there. Parts are added before the manager starts.
type readiness struct{ parts []part }

type part struct {
	name  string
	check func(context.Context) error
}

func (r *readiness) add(name string, check func(context.Context) error) {
	r.parts = append(r.parts, part{name: name, check: check})
}

// names lists the parts.
func (r *readiness) names() string {
	names := make([]string, 0, len(r.parts))
	for _, p := range r.parts {
		names = append(names, p.name)
	}
	return strings.Join(names, ", ")
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
