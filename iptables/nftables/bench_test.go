package nftables

import (
	"testing"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// BenchmarkApply is the default rules: into a fresh namespace, where they stand, and in place of others.
func BenchmarkApply(b *testing.B) {
	want, other := rules(b, nil), rules(b, func(s *iptables.Spec) { s.InboundPort = 16006 })
	b.Run("fresh", func(b *testing.B) {
		backend := newByPath(b)
		for b.Loop() {
			b.StopTimer()
			ns := kerneltest.New(b)
			b.StartTimer()
			mustApply(b, backend, ns, want)
		}
	})
	b.Run("read", func(b *testing.B) {
		backend, ns := newByPath(b), kerneltest.New(b)
		mustApply(b, backend, ns, want)
		for b.Loop() {
			mustApply(b, backend, ns, want)
		}
	})
	b.Run("changed", func(b *testing.B) {
		backend, ns := newByPath(b), kerneltest.New(b)
		for b.Loop() {
			mustApply(b, backend, ns, want)
			mustApply(b, backend, ns, other)
		}
	})
}
