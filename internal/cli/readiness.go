package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// checkTimeout bounds one readiness check.
const checkTimeout = 2 * time.Second

// readiness is what the agent needs to look after pods, part by part. /readyz tells of each by its name, and the startup taint
// goes when all are there. Parts are added before the manager starts.
type readiness struct{ parts []part }

type part struct {
	name  string
	check func(context.Context) error
}

func (r *readiness) add(name string, check func(context.Context) error) {
	r.parts = append(r.parts, part{name: name, check: check})
}

// check names the first part that is missing.
func (r *readiness) check(ctx context.Context) error {
	for _, p := range r.parts {
		if err := p.bounded(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// serve registers all parts for /readyz.
func (r *readiness) serve(mgr manager.Manager) error {
	var errs []error
	for _, p := range r.parts {
		errs = append(errs, mgr.AddReadyzCheck(p.name, func(req *http.Request) error { return p.bounded(req.Context()) }))
	}
	return errors.Join(errs...)
}

func (p part) bounded(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return p.check(ctx)
}
