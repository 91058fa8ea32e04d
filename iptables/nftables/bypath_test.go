package nftables

import (
	"context"
	"testing"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/routing"
	"istio-pod-network-controller/test/kerneltest"
)

// byPath is a Backend whose calls open the namespace anew.
type byPath struct {
	kerneltest.ByPath
	own *Backend
}

func newByPath(t testing.TB) byPath {
	t.Helper()
	own := New()
	return byPath{kerneltest.NewByPath(t, own, routing.Remove), own}
}

func visit[T any](ctx context.Context, b byPath, path string, f func(context.Context, *netns.NS) (T, error)) (T, error) {
	return kerneltest.Visit(ctx, b.ByPath, path, f)
}

func (b byPath) Read(ctx context.Context, path string) (have iptables.Ruleset, ok bool, err error) {
	have, err = visit(ctx, b, path, func(ctx context.Context, ns *netns.NS) (have iptables.Ruleset, err error) {
		have, ok, err = b.own.Read(ctx, ns)
		return have, err
	})
	return have, ok, err
}
