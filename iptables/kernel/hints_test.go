package kernel

import (
	"context"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// What keeps redirected connections from the proxy although the rules are right is named.
func TestLook_surroundings_areHinted(t *testing.T) {
	const proxyEverywhere, proxyNarrow = "[::]:15006", kerneltest.Pod4 + ":15006"
	for name, c := range map[string]struct {
		script, listen string
		want           string // "" is no hint
	}{
		"nothing":                        {"true", proxyEverywhere, ""},
		"nobody listens":                 {"true", "", ""},
		"a port range with the proxy's":  {"echo 1024 65000 >/proc/sys/net/ipv4/ip_local_port_range", proxyEverywhere, "ports 15001, 15006"},
		"and one of them reserved":       {"echo 1024 65000 >/proc/sys/net/ipv4/ip_local_port_range; echo 15000-15003 >/proc/sys/net/ipv4/ip_local_reserved_ports", proxyEverywhere, "ports 15006"},
		"and all of them reserved":       {"echo 1024 65000 >/proc/sys/net/ipv4/ip_local_port_range; echo 15001,15006 >/proc/sys/net/ipv4/ip_local_reserved_ports", proxyEverywhere, ""},
		"a listener at one address":      {"true", proxyNarrow, "the proxy listens on " + kerneltest.Pod4 + " port 15006"},
		"a listener at loopback alone":   {"true", "127.0.0.1:15006", ""},
		"a firewall that drops":          {"nft 'table ip filter { chain OUTPUT { type filter hook output priority 0; policy drop; accept; }; }'", proxyEverywhere, "table ip filter, chain OUTPUT drops by its policy"},
		"a firewall that accepts":        {"nft 'table ip filter { chain OUTPUT { type filter hook output priority 0; drop; }; }'", proxyEverywhere, ""},
		"a policy for what is passed on": {"nft 'table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }'", proxyEverywhere, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod, _ := kerneltest.NewPod(t)
			if c.listen != "" {
				go kerneltest.Answer(kerneltest.ListenTCP(t, pod, kerneltest.Proxy, false, c.listen), "x")
			}
			rules, err := iptables.Rules(iptables.DefaultSpec())
			if err != nil {
				t.Fatal(err)
			}
			kerneltest.Shell(t, pod, c.script, "")
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			found, err := allBackends(t)[Nftables].Look(ctx, at(pod), &rules)
			if got := strings.Join(found.Hints, "\n"); err != nil || (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("hints %q, error %v, want %q", got, err, c.want)
			}
		})
	}
}
