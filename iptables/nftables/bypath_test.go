package nftables

import (
	"context"
	"testing"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// byPath is a Backend whose calls open the namespace anew, refuse the host's and come back by their deadline, as the agent's do.
type byPath struct {
	*Backend
	guard  netns.Guard
	visits *netns.Visits
}

func newByPath(t testing.TB) byPath {
	t.Helper()
	return byPath{New(), kerneltest.Guard(t), netns.NewVisits()}
}

func visit[T any](ctx context.Context, b byPath, path string, f func(context.Context, *netns.NS) (T, error)) (T, error) {
	return netns.Visit(ctx, b.visits, path, b.guard.Open, f)
}

func (b byPath) Apply(ctx context.Context, path string, want iptables.Ruleset) (iptables.Outcome, error) {
	return visit(ctx, b, path, func(ctx context.Context, ns *netns.NS) (iptables.Outcome, error) {
		return b.Backend.Apply(ctx, ns, want)
	})
}

func (b byPath) Verify(ctx context.Context, path string, want iptables.Ruleset) (iptables.Drift, error) {
	return visit(ctx, b, path, func(ctx context.Context, ns *netns.NS) (iptables.Drift, error) {
		return b.Backend.Verify(ctx, ns, want)
	})
}

func (b byPath) Present(ctx context.Context, path string) (bool, error) {
	return visit(ctx, b, path, b.Backend.Present)
}

func (b byPath) Remove(ctx context.Context, path string) (bool, error) {
	return visit(ctx, b, path, b.Backend.Remove)
}

func (b byPath) Yield(ctx context.Context, path string) (bool, error) {
	return visit(ctx, b, path, b.Backend.Yield)
}

func (b byPath) Read(ctx context.Context, path string) (have iptables.Ruleset, ok bool, err error) {
	have, err = visit(ctx, b, path, func(ctx context.Context, ns *netns.NS) (have iptables.Ruleset, err error) {
		have, ok, err = b.Backend.Read(ctx, ns)
		return have, err
	})
	return have, ok, err
}
