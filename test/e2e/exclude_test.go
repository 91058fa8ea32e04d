package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// An excluded range wins over an included one around it.
//
//e2e:rounds core nftables iptables
func TestOnlyIncludedPortsAndRangesAreRedirected(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	pod := s.startMesh(t, meshPod("including", map[string]string{
		keyIncludeInbound: "9100", keyIncludeCIDRs: "203.0.113.64/26,2001:db8:1::40/122", keyExcludeCIDRs: "203.0.113.65/32,2001:db8:1::41/128",
	}))
	for _, f := range families() {
		wantInbound(t, pod, f, appPort, false)
		wantInbound(t, pod, f, appOtherPort, true)
		s.wantOutbound(t, pod, f.at(63, worldPort), false)
		s.wantOutbound(t, pod, f.at(64, worldPort), true)
		s.wantOutbound(t, pod, f.at(65, worldPort), false)
	}
}

// Two pods with other wishes, programmed by one process that goes from namespace to namespace: neither may get the other's.
//
//e2e:rounds nftables
func TestPodsOfOneNodeAreNotMixedUp(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	usual := s.startMesh(t, meshPod("usual", map[string]string{keyExcludeInbound: "9100"}))
	moved := s.startMesh(t, newPod("moved", map[string]string{keyOutboundPort: "16001", keyInboundPort: "16006"},
		appContainer(), proxyContainer("istio-proxy", "-outbound=16001", "-inbound=16006")))

	for _, f := range families() {
		wantInbound(t, usual, f, appPort, true)
		wantInbound(t, usual, f, appOtherPort, false)
		wantInbound(t, moved, f, appPort, true)
		wantInbound(t, moved, f, appOtherPort, true)
		// The same destination from both: each proxy takes its own pod's connection only.
		s.wantOutbound(t, usual, f.at(9, worldPort), true)
		s.wantOutbound(t, moved, f.at(9, worldPort), true)
		if n := took(t, usual, outbound, f.at(9, worldPort)); n != 1 {
			t.Errorf("%s: the first pod's proxy took %d connections, want its own one", f.name, n)
		}
	}
	wantRedirectsTo(t, s, usual, "15001", "15006")
	wantRedirectsTo(t, s, moved, "16001", "16006")
}

// wantRedirectsTo wants a pod's rules to lead to both of its proxy's ports, and to none of another pod's.
func wantRedirectsTo(t *testing.T, s *space, pod *corev1.Pod, out, in string) {
	t.Helper()
	rules, ok := s.rules(t, pod)
	if !ok {
		t.Fatalf("pod %s holds no rules", pod.Name)
	}
	for _, port := range []string{"15001", "15006", "16001", "16006"} {
		if got, want := rules.contains(redirectTo(port)), port == out || port == in; got != want {
			t.Errorf("pod %s: rules that lead to port %s: %v, want %v", pod.Name, port, got, want)
		}
	}
}
