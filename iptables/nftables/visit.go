package nftables

import (
	"context"

	"istio-pod-network-controller/internal/netns"
)

// visit calls f with the namespace at path and a socket inside it, and returns what f returns, as netns.Visit does.
func visit[T any](ctx context.Context, b *Backend, path string, f func(*netns.NS, *socket) (T, error)) (T, error) {
	return netns.Visit(ctx, b.visits, path, b.guard.Open, func(ns *netns.NS) (value T, err error) {
		s, err := dial(ns)
		if err != nil {
			return value, err
		}
		return f(ns, s)
	})
}
