package nftables

import (
	"context"

	"istio-pod-network-controller/internal/netns"
)

// visit calls f with the namespace at path and a socket inside it, and returns what f returns, as netns.Visit does.
func visit[T any](ctx context.Context, b *Backend, path string, f func(context.Context, *netns.NS, *socket) (T, error)) (T, error) {
	return netns.Visit(ctx, b.visits, path, b.guard.Open, func(ctx context.Context, ns *netns.NS) (value T, err error) {
		s, err := dial(ns)
		if err != nil {
			return value, err
		}
		return f(ctx, ns, s)
	})
}
