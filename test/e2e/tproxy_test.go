package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func tproxy() map[string]string { return map[string]string{keyMode: "TPROXY"} }

// Envoy and HAProxy keep the client's address by different means: one marks its connections, the other does not.
//
//e2e:rounds core nftables iptables
func TestTransparentProxiesKeepTheClientsAddress(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	client := s.start(t, newPod("client", map[string]string{keyInitialize: "false"}, bare(appContainer())))
	pods := map[string]*corev1.Pod{
		"HAProxy": haproxyPod("haproxy", tproxy(), sampleConfig(t, s, "haproxy-tproxy-config.yaml"), asRoot(haproxyContainer(), "NET_RAW")),
		"marking": newPod("marking", tproxy(), appContainer(), asRoot(proxyContainer("istio-proxy", "-transparent"), "NET_ADMIN")),
	}
	for name, pod := range pods {
		pod.Spec.Containers[0] = bare(pod.Spec.Containers[0])
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := s.startMesh(t, pod)
			if got := processField(t, s.containerPID(t, pod, "app"), "CapEff"); strings.Trim(got, "0") != "" {
				t.Errorf("the application has capabilities: %s", got)
			}
			for _, f := range families() {
				wantKept(t, s, client, pod, f)
				s.wantTaken(t, pod, inbound, f, f.client)
				s.wantTaken(t, pod, inbound, f, at(client, f, 0).Addr())
				if hasJournal(pod) {
					s.wantOutbound(t, pod, f.at(1, worldPort), true)
					wantDirectToItself(t, s, pod, f)
				}
			}
			if hasJournal(pod) {
				return
			}
			f := families()[0] // redirected, so that HAProxy knows the destination of IPv4 only
			if a := s.askFrom(t, pod, f.at(1, worldPort)); a.Banner != "world" || a.peer() != at(pod, f, 0).Addr() {
				t.Errorf("outbound: answered by %q, which saw %s", a.Banner, a.Peer)
			}
			s.wantLogged(t, pod, outbound, at(pod, f, 0).Addr(), f.at(1, worldPort))
		})
	}
}

// wantKept wants the pod's application to see who really asks: this program, and another pod.
func wantKept(t *testing.T, s *space, client, pod *corev1.Pod, f family) {
	t.Helper()
	dst := at(pod, f, appPort)
	var a answer
	must(t, request(t.Context(), dst, "/", &a))
	if a.peer() != f.client || a.Local != dst.String() {
		t.Errorf("%s: the application saw %s -> %s, want %s -> %s", f.name, a.Peer, a.Local, f.client, dst)
	}
	a = s.askFrom(t, client, dst)
	if want := at(client, f, 0).Addr(); a.peer() != want || a.Local != dst.String() {
		t.Errorf("%s: the application saw %s -> %s, want %s -> %s", f.name, a.Peer, a.Local, want, dst)
	}
}

// wantTaken wants the pod's proxy to have taken a connection of a client: what the application says would be the same if all
// had gone past the proxy.
func (s *space) wantTaken(t *testing.T, pod *corev1.Pod, direction string, f family, client netip.Addr) {
	t.Helper()
	dst := at(pod, f, appPort)
	if !hasJournal(pod) {
		s.wantLogged(t, pod, direction, client, dst)
		return
	}
	for _, e := range journal(t, pod) {
		if e.Direction == direction && e.OriginalDst == dst.String() && e.Error == "" && e.peer() == client {
			return
		}
	}
	t.Errorf("%s: the proxy took no connection from %s to %s: %+v", f.name, client, dst, journal(t, pod))
}

//e2e:rounds core nftables iptables
func TestModeNoneIsNoRules(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	pod := s.startUntouched(t, meshPod("none", map[string]string{keyMode: "NONE"}))
	for _, f := range families() {
		wantInbound(t, pod, f, appPort, false)
		s.wantOutbound(t, pod, f.at(1, worldPort), false)
	}
}

// startUntouched is start for a pod that asks and needs no rules.
func (s *space) startUntouched(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	s.start(t, pod)
	return s.await(t, pod.Name, func(pod *corev1.Pod) error {
		if c := conditionOf(pod); c.Status != corev1.ConditionTrue || c.Reason != "NotRequired" {
			return fmt.Errorf("the condition is %s, %s", c.Status, c.Reason)
		}
		return nil
	})
}

// bare takes every privilege from a container.
func bare(c corev1.Container) corev1.Container {
	id, yes, no := int64(1000), true, false
	c.SecurityContext = &corev1.SecurityContext{
		RunAsUser: &id, RunAsGroup: &id, RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	return c
}

// asRoot runs a proxy as Istio runs its own for TPROXY, with one capability.
func asRoot(c corev1.Container, capability corev1.Capability) corev1.Container {
	root, group, no := int64(0), int64(1337), false
	c.SecurityContext = &corev1.SecurityContext{
		RunAsUser: &root, RunAsGroup: &group, AllowPrivilegeEscalation: &no,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{capability}},
	}
	return c
}
