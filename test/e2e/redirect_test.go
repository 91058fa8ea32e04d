package e2e

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// What the application sees as its peer and what the proxy read from the kernel must agree: either alone could be right
// while the connection went astray.
//
//e2e:rounds core nftables iptables
func TestTrafficPassesTheProxyInBothFamilies(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	pod := s.startMesh(t, meshPod("meshed", nil))
	for _, f := range families() {
		t.Run(f.name, func(t *testing.T) {
			wantInbound(t, pod, f, appPort, true)
			s.wantOutbound(t, pod, f.at(1, worldPort), true)
			wantDirectToItself(t, s, pod, f)
		})
	}
}

// wantDirectToItself wants an application that calls itself to meet no proxy.
func wantDirectToItself(t *testing.T, s *space, pod *corev1.Pod, f family) {
	t.Helper()
	before := counts(t, pod)
	for _, ip := range []netip.Addr{at(pod, f, 0).Addr(), f.loopback} {
		if a := s.askFrom(t, pod, netip.AddrPortFrom(ip, appPort)); a.peer() != ip {
			t.Errorf("the application asked itself at %s and saw %s", ip, a.Peer)
		}
	}
	if after := counts(t, pod); after[inbound] != before[inbound] || after[outbound] != before[outbound] {
		t.Errorf("the proxy counts %+v, before the application asked itself %+v", after, before)
	}
}
