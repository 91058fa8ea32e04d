package kerneltest

import (
	"context"
	"testing"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// Driver programs open namespaces. It is kernel.Driver without what tests do not call.
type Driver interface {
	Name() string
	Apply(ctx context.Context, ns *netns.NS, want iptables.Ruleset) (iptables.Outcome, error)
	Verify(ctx context.Context, ns *netns.NS, want iptables.Ruleset) (iptables.Drift, error)
	Present(ctx context.Context, ns *netns.NS) (bool, error)
	Yield(ctx context.Context, ns *netns.NS) (bool, error)
	List(ctx context.Context, ns *netns.NS) (iptables.Listing, bool, error)
}

// ByPath has a Driver work as the agent does: each call opens the namespace anew, refuses the host's, and comes back by its deadline.
type ByPath struct {
	Driver Driver
	routes func(context.Context, *netns.NS) (removed bool, err error)
	guard  netns.Guard
	visits *netns.Visits
}

// NewByPath returns a ByPath. routes removes addresses and routes: it is routing.Remove, whose own tests use this package.
func NewByPath(t testing.TB, d Driver, routes func(context.Context, *netns.NS) (removed bool, err error)) ByPath {
	t.Helper()
	return ByPath{d, routes, Guard(t), netns.NewVisits()}
}

// Visit calls f with the open namespace at a path.
func Visit[T any](ctx context.Context, b ByPath, path string, f func(context.Context, *netns.NS) (T, error)) (T, error) {
	return netns.Visit(ctx, b.visits, path, b.guard.Open, f)
}

// Name is the Driver's.
func (b ByPath) Name() string { return b.Driver.Name() }

// Apply is the Driver's, at a path.
func (b ByPath) Apply(ctx context.Context, path string, want iptables.Ruleset) (iptables.Outcome, error) {
	return Visit(ctx, b, path, func(ctx context.Context, ns *netns.NS) (iptables.Outcome, error) {
		return b.Driver.Apply(ctx, ns, want)
	})
}

// Verify is the Driver's, at a path.
func (b ByPath) Verify(ctx context.Context, path string, want iptables.Ruleset) (iptables.Drift, error) {
	return Visit(ctx, b, path, func(ctx context.Context, ns *netns.NS) (iptables.Drift, error) { return b.Driver.Verify(ctx, ns, want) })
}

// Present is the Driver's, at a path.
func (b ByPath) Present(ctx context.Context, path string) (bool, error) {
	return Visit(ctx, b, path, b.Driver.Present)
}

// Yield is the Driver's, at a path.
func (b ByPath) Yield(ctx context.Context, path string) (bool, error) {
	return Visit(ctx, b, path, b.Driver.Yield)
}

// List is the Driver's, at a path.
func (b ByPath) List(ctx context.Context, path string) (have iptables.Listing, ok bool, err error) {
	have, err = Visit(ctx, b, path, func(ctx context.Context, ns *netns.NS) (have iptables.Listing, err error) {
		have, ok, err = b.Driver.List(ctx, ns)
		return have, err
	})
	return have, ok, err
}

// Remove removes the Driver's rules, and addresses and routes, as the agent does.
func (b ByPath) Remove(ctx context.Context, path string) (bool, error) {
	return Visit(ctx, b, path, func(ctx context.Context, ns *netns.NS) (bool, error) {
		rules, err := b.Driver.Yield(ctx, ns)
		if err != nil {
			return false, err
		}
		routes, err := b.routes(ctx, ns)
		return rules || routes, err
	})
}
