package conformance

import (
	"fmt"
	"net"
	"testing"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// Others reach the proxy that serves now at the port that they know. The pod itself, and what goes through it, is left alone.
func TestAliases_others_reachTheProxyThatServes(t *testing.T) {
	t.Parallel()
	eachMode(t, wantAliases)
}

func wantAliases(t *testing.T, b backend, mode iptables.Mode) {
	t.Helper()
	pod, world := kerneltest.NewPod(t)
	kerneltest.Listen(t, pod, kerneltest.Proxy, "status", 15020, 15320)
	ask := func(host string) string {
		r, err := kerneltest.Dial(t.Context(), world, kerneltest.App, "", net.JoinHostPort(host, "15020"))
		if err != nil {
			t.Error(err)
		}
		return r.Banner
	}
	spec := with(func(s *iptables.Spec) { s.Mode = mode })
	for _, serves := range []uint16{15020, 15320, 15020} {
		spec.Aliases = nil
		if serves != 15020 {
			spec.Aliases = []iptables.PortAlias{{From: 15020, To: serves}}
		}
		if _, err := b.Apply(t.Context(), pod.Path(), configuration{spec: spec}.rules(t)); err != nil {
			t.Fatal(err)
		}
		for _, host := range []string{kerneltest.Pod4, kerneltest.Pod6} {
			if got, want := ask(host), fmt.Sprintf("status:%d", serves); got != want {
				t.Errorf("%s: %q answers, want %q", host, got, want)
			}
		}
		own, err := kerneltest.Dial(t.Context(), pod, kerneltest.App, "", "127.0.0.1:15020")
		if err != nil || own.Banner != "status:15020" {
			t.Errorf("inside the pod %q answers, error %v", own.Banner, err)
		}
	}
}
