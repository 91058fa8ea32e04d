package main

import (
	"net/netip"
	"strings"
	"testing"

	"istio-pod-network-controller/hack/cluster/internal/kerneltest"
)

func TestTransparentProxyKeepsTheClientsAddress(t *testing.T) {
	p := kerneltest.NewTransparentPod(t)
	p.Run(t, []string{asProxy}, "/proc/self/exe", "proxy", "sidecar", "-transparent")
	p.Serve(t, true, 8080)
	p.Serve(t, false, 8080)
	pods, worlds := p.Addrs()
	clients := p.WorldAddrs()
	for i, family := range []string{"IPv4", "IPv6"} {
		pod, world := netip.AddrPortFrom(pods[i], 8080), netip.AddrPortFrom(worlds[i], 8080)
		t.Run(family, func(t *testing.T) {
			peer, local, err := p.Ask(t, false, pod)
			if err != nil || peer.Addr() != clients[i] || local != pod {
				t.Errorf("inbound: the application saw %s -> %s, %v; want %s -> %s", peer, local, err, clients[i], pod)
			}
			want(t, p, connection{Direction: inboundDirection, OriginalDst: pod.String()})
			peer, local, err = p.Ask(t, true, world)
			if err != nil || peer.Addr() != pod.Addr() || local != world {
				t.Errorf("outbound: the world saw %s -> %s, %v; want %s -> %s", peer, local, err, pod.Addr(), world)
			}
			want(t, p, connection{Direction: outboundDirection, OriginalDst: world.String()})
		})
	}
}

func TestValidationIsOfTheRules(t *testing.T) {
	for name, c := range map[string]struct {
		pod  func(*testing.T) *kerneltest.Pod
		args []string
		want string // what is complained about
	}{
		"rules of both families":     {pod: kerneltest.NewPod},
		"rules to another port":      {kerneltest.NewPod, []string{"-inbound=16006", "-outbound=16001"}, "refused"},
		"no rule for such a request": {kerneltest.NewTransparentPod, nil, "127.0.0.1 -> 127.0.0.6:15002 does not arrive"},
	} {
		t.Run(name, func(t *testing.T) {
			argv := append([]string{"/proc/self/exe", "validate", "-within=300ms"}, c.args...)
			out, err := c.pod(t).Try(t, []string{asProxy}, argv...)
			if c.want == "" && (err != nil || strings.Count(out, "arrives at the proxy") != 2) {
				t.Errorf("%v: %s", err, out)
			}
			if c.want != "" && (err == nil || !strings.Contains(out, c.want)) {
				t.Errorf("no complaint with %q, but %v: %s", c.want, err, out)
			}
		})
	}
}
