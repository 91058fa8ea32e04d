package e2e

import (
	"context"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// secondLink is a network of the pod's beside the cluster's: this program's addresses on it, and the pod's.
type secondLink struct{ here, pod netip.Prefix }

func secondLinks() []secondLink {
	p := netip.MustParsePrefix
	return []secondLink{{p("198.51.100.1/24"), p("198.51.100.5/24")}, {p("2001:db8:2::1/64"), p("2001:db8:2::5/64")}}
}

//e2e:rounds nftables iptables
func TestExcludedInterfaceStaysDirect(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	pod := s.startMesh(t, meshPod("two-armed", map[string]string{keyExcludeLinks: "net1"}))
	s.addLink(t, pod, "net1")
	for i, f := range families() {
		s.wantBySecondLink(t, pod, secondLinks()[i], f, false)
		wantInbound(t, pod, f, appPort, true)
		s.wantOutbound(t, pod, f.at(1, worldPort), true)
	}

	s.annotate(t, pod.Name, map[string]any{keyExcludeLinks: nil})
	pod = s.await(t, pod.Name, hasOtherHash(readDetails(t, pod).SpecHash))
	for i, f := range families() {
		s.wantBySecondLink(t, pod, secondLinks()[i], f, true)
	}
}

// wantBySecondLink makes a connection each way by the second link and wants both to pass the proxy, or not.
func (s *space) wantBySecondLink(t *testing.T, pod *corev1.Pod, l secondLink, f family, proxied bool) {
	t.Helper()
	in, out := netip.AddrPortFrom(l.pod.Addr(), appPort), netip.AddrPortFrom(l.here.Addr(), worldPort)
	client, times := l.here.Addr(), 0
	if proxied {
		client, times = f.passthrough, 1
	}
	entered, left := took(t, pod, inbound, in), took(t, pod, outbound, out)
	var a answer
	must(t, request(t.Context(), in, "/", &a))
	if a.Banner != pod.Name || a.peer() != client || a.Local != in.String() {
		t.Errorf("inbound: %q saw %s -> %s, want %s -> %s", a.Banner, a.Peer, a.Local, client, in)
	}
	if a := s.askFrom(t, pod, out); a.Banner != "world" || a.peer() != l.pod.Addr() || a.Local != out.String() {
		t.Errorf("outbound: %q saw %s -> %s, want %s -> %s", a.Banner, a.Peer, a.Local, l.pod.Addr(), out)
	}
	if in, out := took(t, pod, inbound, in)-entered, took(t, pod, outbound, out)-left; in != times || out != times {
		t.Errorf("%s: the proxy took %d connections inbound and %d outbound, want %d each", f.name, in, out, times)
	}
}

// addLink joins the pod to this program by a second link, as a second network does.
func (s *space) addLink(t *testing.T, pod *corev1.Pod, name string) {
	t.Helper()
	const here = "e2e-second"
	inPod := "--net=" + s.sandboxOf(t, pod).here(s.cluster)
	run := func(argv ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", strings.Join(argv, " "), err, out)
		}
	}
	run("ip", "link", "add", here, "type", "veth", "peer", "name", name, "netns", strconv.Itoa(s.containerPID(t, pod, pod.Spec.Containers[0].Name)))
	t.Cleanup(func() {
		// Without the cancelled context of the test. The pod's end may have taken it already.
		_ = exec.CommandContext(context.WithoutCancel(t.Context()), "ip", "link", "delete", here).Run()
	})
	for _, l := range secondLinks() {
		// Without nodad, which means nothing to IPv4, an address could not be used at once.
		run("ip", "address", "add", l.here.String(), "dev", here, "nodad")
		run("nsenter", inPod, "ip", "address", "add", l.pod.String(), "dev", name, "nodad")
	}
	run("ip", "link", "set", here, "up")
	run("nsenter", inPod, "ip", "link", "set", name, "up")
	for _, l := range secondLinks() {
		eventually(t, "the second link", func(ctx context.Context) error {
			var a answer
			return request(ctx, netip.AddrPortFrom(l.pod.Addr(), appPort), "/", &a)
		})
	}
}
