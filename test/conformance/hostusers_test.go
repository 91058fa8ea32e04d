package conformance

import (
	"fmt"
	"strings"
	"testing"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// In a pod with hostUsers: false the proxy is user 1337 as the pod sees it. nftables knows that; iptables cannot, and says so.
func TestRules_podWithOwnUsers_isCaptured(t *testing.T) {
	for _, b := range backends(t) {
		for _, mode := range []iptables.Mode{iptables.ModeRedirect, iptables.ModeTProxy} {
			t.Run(fmt.Sprintf("%s/%s", b.Name(), mode), func(t *testing.T) {
				w := newWorldAround(t, kerneltest.NewWithUsers(t), "ds")
				setup := configuration{spec: with(func(s *iptables.Spec) { s.Mode = mode })}
				_, err := b.Apply(t.Context(), w.pod().Path(), setup.rules(t))
				if b.Name() != "nftables" {
					if err == nil || !strings.Contains(err.Error(), "hostUsers") {
						t.Errorf("error %v does not speak of hostUsers", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				in := func(id int) int { return kerneltest.FirstUser + id }
				w.listen(t, configuration{spec: with(func(s *iptables.Spec) {
					s.Mode, s.ProxyUID, s.ProxyGID = mode, kerneltest.FirstUser+1337, kerneltest.FirstUser+1337
				})})
				probes, want := parseLines(t, []string{
					fmt.Sprintf("pod %d tcp 93.184.216.34:80 = PROXY:15001", in(1000)), fmt.Sprintf("pod %d tcp 93.184.216.34:80 = WORLD:7000", in(1337)),
					fmt.Sprintf("pod %d tcp 10.244.1.5:8080 = PROXY:15006", in(1337)), fmt.Sprintf("pod %d tcp 10.244.1.5:8080 = APP:8080", in(1000)),
					fmt.Sprintf("pod %d tcp [fd00:99::34]:80 = WORLD:7000", in(1337)), "world 0 tcp [fd00:10:244:1::5]:8080 = PROXY:15006",
				})
				w.compare(t, probes, want)
			})
		}
	}
}
