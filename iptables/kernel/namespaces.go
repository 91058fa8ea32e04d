package kernel

import (
	"context"
	"errors"
	"fmt"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
)

// Namespaces opens the network namespaces of pods, and lets one call at a time work in each.
type Namespaces struct {
	guard  netns.Guard
	visits *netns.Visits
	// panicked is called after a panic. It may be nil.
	panicked func(ctx context.Context, p *netns.PanicError)
}

// NewNamespaces returns the pods' namespaces. It fails if the host's own cannot be identified.
func NewNamespaces() (Namespaces, error) {
	guard, err := netns.NewGuard()
	return Namespaces{guard: guard, visits: netns.NewVisits()}, err
}

// Identify opens the namespace that a path leads to and returns its identity.
func (n Namespaces) Identify(path string) (found podnet.Identity, err error) {
	ns, err := n.guard.Open(path)
	if err != nil {
		return found, err
	}
	found, err = ns.Identity()
	return found, errors.Join(err, ns.Close())
}

// Visit calls f with the open namespace of a place. The path of the open namespace is a descriptor's: nobody else can make it lead
// elsewhere. Visit returns soon after the deadline of ctx, as netns.Visit does.
func Visit[T any](ctx context.Context, n Namespaces, at podnet.Place, f func(ctx context.Context, ns *netns.NS) (T, error)) (T, error) {
	return netns.Visit(ctx, n.visits, at.Path, n.guard.Open, func(ctx context.Context, ns *netns.NS) (value T, err error) {
		err = check(ns, at)
		if err == nil {
			err = netns.Contain(func() error { value, err = f(ctx, ns); return err })
		}
		var p *netns.PanicError
		if errors.As(err, &p) && n.panicked != nil {
			n.panicked(ctx, p)
		}
		return value, err
	})
}

// check returns podnet.ErrGone if the open namespace is not the place's.
func check(ns *netns.NS, at podnet.Place) error {
	if at.Identity == (podnet.Identity{}) {
		return nil
	}
	found, err := ns.Identity()
	if err != nil {
		return err
	}
	if found != at.Identity {
		return fmt.Errorf("%q leads to another network namespace than the sandbox's: %w", at.Path, podnet.ErrGone)
	}
	return nil
}
