package conformance

import (
	"maps"
	"strings"
	"testing"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/foreign"
	"istio-pod-network-controller/iptables/nftables"
	"istio-pod-network-controller/iptables/xtables"
	"istio-pod-network-controller/test/kerneltest"
)

// preemptCase is rules of others, and what they do to connections of a pod with the default rules: out of the pod, which go to the
// proxy if ours decide, and into it.
type preemptCase struct {
	script  string
	reports string // part of a line, or "" for none
	out, in string // who answers; "" for nobody
}

// nftTable makes a table with one base chain.
func nftTable(chain string) string { return "nft 'table inet x {\n" + chain + "\n}'" }

// behindCases are rules behind ours.
func behindCases() map[string]preemptCase {
	const proxied, captured = "PROXY:15001", "PROXY:15006"
	// forgotten lets connection tracking forget a connection at once: so it does not stand in the way of answers from another address.
	const forgotten = "ct timeout t { protocol tcp; l3proto ip; policy = { syn_sent : 0 }; }\n"
	return map[string]preemptCase{
		"a new route for what our rules have redirected": {
			nftTable(forgotten + "chain c { type route hook output priority 0; tcp dport 15001 ct timeout set \"t\"; " +
				"tcp dport 15001 ip daddr set ct original ip daddr tcp dport set ct original proto-dst; }"),
			"nftables, table inet x, chain c sends packets elsewhere behind our rules", "WORLD:80", captured,
		},
		"another port for what our rules have redirected": {
			nftTable(forgotten + "chain d { tcp dport 15006 ct timeout set \"t\" tcp dport set ct original proto-dst; }\n" +
				"chain c { type filter hook input priority 0; jump d; }"),
			"nftables, table inet x, chain d sends packets elsewhere behind our rules", proxied, "APP:8080",
		},
		"another device for what our rules have redirected": {
			nftTable(forgotten+"chain c { type filter hook output priority 0; tcp dport 15001 ct timeout set \"t\"; }") +
				"; nft 'table netdev y {\nchain c { type filter hook egress device lo priority 0; tcp dport 15001 ip daddr set 93.184.216.34 tcp dport set 80 fwd ip to 10.244.1.1 device \"eth0\"; }\n}'",
			"nftables, table netdev y, chain c sends packets elsewhere behind our rules", "WORLD:80", captured,
		},
		"a copy for another router": {
			"nft 'table ip x {\nchain c { type filter hook output priority 0; tcp dport 15001 ip daddr set 93.184.216.34 tcp dport set 80 dup to 10.244.1.1 device \"eth0\" drop; }\n}'",
			"nftables, table ip x, chain c sends packets elsewhere behind our rules", "", captured,
		},
		"another socket": {nftTable("chain c { type filter hook prerouting priority 0; meta l4proto tcp tproxy ip to :8080; }"), "table inet x, chain c sends packets elsewhere", proxied, captured},
		"another socket, by iptables": {
			"iptables-nft -t mangle -N y; iptables-nft -t mangle -A y -p tcp --dport 15006 -j TPROXY --on-port 8080; " +
				"nft 'add chain ip mangle x { type filter hook prerouting priority 0; }; add rule ip mangle x jump y'",
			"table ip mangle, chain y sends packets elsewhere", proxied, "", // the socket is not transparent
		},
		"a legacy queue behind our rules":  {"iptables-legacy -A OUTPUT -p tcp --dport 15001 -j NFQUEUE", "legacy iptables, table ip filter sends packets elsewhere behind our rules", "", captured},
		"a legacy queue at input":          {"iptables-legacy -A INPUT -p tcp --dport 15006 -j NFQUEUE", "legacy iptables, table ip filter sends packets elsewhere behind our rules", proxied, ""},
		"a legacy copy behind our rules":   {"iptables-legacy -t mangle -A POSTROUTING -p tcp --dport 15001 -j TEE --gateway 10.244.1.1", "legacy iptables, table ip mangle sends packets elsewhere behind our rules", proxied, captured},
		"a legacy firewall behind ours":    {"iptables-legacy -A OUTPUT -p tcp --dport 9 -j REJECT; iptables-legacy -A INPUT -p udp -j DROP", "", proxied, captured},
		"a queue behind our rules":         {"iptables-nft -A OUTPUT -p tcp --dport 15001 -j NFQUEUE --queue-bypass", "table ip filter, chain OUTPUT sends packets elsewhere", proxied, captured},
		"a firewall behind our rules":      {"iptables-nft -A OUTPUT -p tcp --dport 9 -j REJECT; iptables-nft -A INPUT -p udp -j DROP", "", proxied, captured},
		"other TTLs, DSCPs and MSS":        {nftTable("chain c { type filter hook postrouting priority 0; ip ttl set 60; ip6 hoplimit set 60; ip dscp set cs1; tcp flags syn tcp option maxseg size set 1200; }"), "", proxied, captured},
		"more rules than anybody looks at": {`{ echo "table inet x {"; echo "chain c { type filter hook output priority 0;"; for i in $(seq 5000); do echo "tcp dport 9 counter"; done; echo "}"; echo "}"; } | nft -f -`, "nftables, table inet x has more rules behind ours than are read", proxied, captured},
	}
}

func preemptCases() map[string]preemptCase {
	const proxied, captured = "PROXY:15001", "PROXY:15006"
	return map[string]preemptCase{
		"a redirect in an earlier nat chain": {
			nftTable("chain c { type nat hook output priority -150; tcp dport 80 redirect to :9999; }"), "chain c (output, priority -150) has rules", "OTHER:9999", captured,
		},
		"a redirect in a chain that an earlier nat chain jumps to": {
			nftTable("chain d { counter; meta l4proto tcp redirect to :9999; }\nchain c { type nat hook output priority -150; ip daddr 93.184.216.34 jump d; }"), "chain c (output, priority -150) has rules", "OTHER:9999", captured,
		},
		"a new destination by iptables, in an earlier nat chain": {
			nftTable("chain c { type nat hook prerouting priority -106; tcp dport 8080 dnat ip to 10.244.1.5:9999; }"), "(prerouting, priority -106) has rules", proxied, "OTHER:9999",
		},
		"a drop in an earlier nat chain":                {nftTable("chain c { type nat hook output priority -150; tcp dport 80 drop; }"), "has rules", "", captured},
		"a drop in an earlier filter chain":             {nftTable("chain c { type filter hook prerouting priority -150; tcp dport 8080 drop; }"), "(prerouting, priority -150) has rules", proxied, ""},
		"a map of verdicts":                             {nftTable("chain c { type filter hook output priority -150; tcp dport vmap { 80 : drop }; }"), "has rules", "", captured},
		"a policy that drops":                           {nftTable("chain c { type filter hook output priority -300; policy drop; oifname lo accept; tcp sport 15006 accept; }"), "drops by its policy", "", captured},
		"no connection tracking":                        {nftTable("chain c { type filter hook output priority -310; tcp dport 80 notrack; }"), "has rules", "", captured},
		"Istio's mark":                                  {nftTable("chain c { type filter hook prerouting priority -150; tcp dport 8080 meta mark set 1337; }"), "has rules", proxied, captured},
		"Istio's mark by iptables":                      {"iptables-nft -t mangle -A PREROUTING -p tcp --dport 8080 -j MARK --set-mark 1337", "has rules", proxied, captured},
		"a drop in a legacy table":                      {"iptables-legacy -t mangle -N X; iptables-legacy -t mangle -A X -p tcp -j DROP; iptables-legacy -t mangle -A OUTPUT -d 93.184.216.34 -j X", "legacy iptables, table ip mangle, chain OUTPUT (output, priority -150) has rules", "", captured},
		"no connection tracking by legacy":              {"iptables-legacy -t raw -A OUTPUT -p tcp --dport 80 -j CT --notrack", "legacy iptables, table ip raw, chain OUTPUT (output, priority -300) has rules", "", captured},
		"what is done before the protocol is looked at": {nftTable("chain c { type filter hook output priority -310; tcp dport 80 notrack meta l4proto udp; }"), "has rules", "", captured},
		"a chain that is called like one of ours":       {nftTable("chain PODNET_OUTBOUND { tcp dport 80 notrack; }\nchain OUTPUT { type filter hook output priority -310; jump PODNET_OUTBOUND; }"), "chain OUTPUT (output, priority -310) has rules", "", captured},
		"Istio's mark in an earlier nat chain":          {nftTable("chain c { type nat hook prerouting priority -150; tcp dport 8080 meta mark set 1337; }"), "has rules", proxied, captured},
		"a mark that comes from the connection":         {"iptables-legacy -t mangle -A PREROUTING -p tcp --dport 8080 -j CONNMARK --set-mark 1337; iptables-legacy -t mangle -A PREROUTING -p tcp --dport 8080 -j CONNMARK --restore-mark", "has rules", proxied, captured},
		"a legacy queue without a reader":               {"iptables-legacy -t mangle -A OUTPUT -p tcp --dport 80 -j QUEUE", "has rules", "", captured},
		"a legacy mark":                                 {"iptables-legacy -t mangle -A PREROUTING -p tcp --dport 8080 -j MARK --set-mark 1337", "legacy iptables, table ip mangle, chain PREROUTING", proxied, captured},
		"a legacy policy that drops":                    {"iptables-legacy -t mangle -A OUTPUT -o lo -j ACCEPT; iptables-legacy -t mangle -A OUTPUT -p tcp --sport 15006 -j ACCEPT; iptables-legacy -t mangle -P OUTPUT DROP", "drops by its policy", "", captured},
		"Istio's mark at ingress": {
			"nft 'table netdev x {\nchain c { type filter hook ingress device eth0 priority 0; tcp dport 8080 meta mark set 1337; }\n}'", "table netdev x, chain c (ingress, priority 0) has rules", proxied, captured,
		},
		"nothing":                            {"true", "", proxied, captured},
		"a plain accept in earlier chains":   {nftTable("chain c { type nat hook output priority -150; tcp dport 80 accept; }\nchain d { type filter hook prerouting priority -200; accept; }"), "has rules", proxied, captured},
		"what an accept hides":               {nftTable("chain c { type filter hook output priority -200; counter accept; drop; }"), "has rules", proxied, captured},
		"a redirect for another protocol":    {nftTable("chain c { type nat hook output priority -150; udp dport 80 redirect to :9999; }"), "has rules", proxied, captured},
		"a redirect in a later nat chain":    {nftTable("chain c { type nat hook output priority -100; tcp dport 80 redirect to :9999; }"), "", proxied, captured},
		"a redirect by iptables":             {"iptables-nft -t nat -A OUTPUT -p tcp --dport 80 -j REDIRECT --to-ports 9999; iptables-nft -t nat -A PREROUTING -p tcp --dport 8080 -j REDIRECT --to-ports 9999", "", proxied, captured},
		"a redirect by legacy iptables":      {"iptables-legacy -t nat -A OUTPUT -p tcp --dport 80 -j REDIRECT --to-ports 9999", "", proxied, captured},
		"a drop after our rules":             {nftTable("chain c { type filter hook output priority 0; ip daddr 93.184.216.34 tcp dport 80 drop; }"), "", proxied, captured},
		"chains that no packet comes to":     {"for p in iptables-nft iptables-legacy; do for t in nat mangle; do $p -t $t -N KUBE-KUBELET-CANARY; $p -t $t -A KUBE-KUBELET-CANARY -j DROP 2>/dev/null || true; done; done", "", proxied, captured},
		"masquerading behind our rules":      {"iptables-nft -t nat -N KUBE-POSTROUTING; iptables-nft -t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN; iptables-nft -t nat -A KUBE-POSTROUTING -j MASQUERADE; iptables-nft -t nat -A POSTROUTING -j KUBE-POSTROUTING", "", proxied, captured},
		"another mark":                       {"iptables-nft -t mangle -A PREROUTING -p tcp -j MARK --set-mark 5; " + nftTable("chain c { type route hook output priority -160; meta mark set 5; }"), "has rules", proxied, captured},
		"bits that are in none of our marks": {"iptables-legacy -t mangle -A PREROUTING -p tcp -j MARK --set-xmark 0x4000/0x4000; " + nftTable("chain c { type filter hook prerouting priority -160; meta mark set meta mark or 0x4000; }"), "has rules", proxied, captured},
		"another mark in a legacy table":     {"iptables-legacy -t mangle -A PREROUTING -p tcp -j MARK --set-mark 5", "has rules", proxied, captured},
		"a legacy drop for another protocol": {"iptables-legacy -t raw -A OUTPUT -p udp -j DROP; ip6tables-legacy -t raw -A OUTPUT -p udp -j DROP", "has rules", proxied, captured},
		"a helper of connection tracking":    {"iptables-legacy -t raw -A PREROUTING -p tcp --dport 21 -j CT --zone 0", "has rules", proxied, captured},
	}
}

// What decides about packets before our rules is reported. So is a chain at such a place that decides nothing.
func TestPreempting_whatDecidesBeforeOurs_isReported(t *testing.T) {
	t.Parallel()
	kerneltest.ProgramPath(t, "iptables-legacy")
	cases := preemptCases()
	maps.Copy(cases, behindCases())
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of it is waiting for nobody
			if strings.Contains(c.script, "hook egress") {
				kerneltest.NeedEgressChains(t)
			}
			pod, world := kerneltest.NewPod(t)
			kerneltest.Listen(t, pod, kerneltest.Owner{UID: 0, GID: 1337}, "PROXY", 15001, 15006)
			kerneltest.Listen(t, pod, kerneltest.App, "APP", 8080)
			kerneltest.Listen(t, pod, kerneltest.App, "OTHER", 9999)
			kerneltest.Listen(t, world, kerneltest.App, "WORLD", 80)
			rules := configuration{spec: iptables.DefaultSpec()}.rules(t)
			if _, err := nftables.New().Apply(t.Context(), pod, rules); err != nil {
				t.Fatal(err)
			}
			kerneltest.Shell(t, pod, c.script, "")
			lines, err := foreign.Preempting(t.Context(), pod, foreign.OursOf(rules, false))
			if reported := strings.Join(lines, "\n"); err != nil || (reported == "") != (c.reports == "") || !strings.Contains(reported, c.reports) {
				t.Errorf("reported %q, error %v, want %q", reported, err, c.reports)
			}
			out, _ := kerneltest.Dial(t.Context(), pod, kerneltest.App, "", kerneltest.Outside4+":80")
			in, _ := kerneltest.Dial(t.Context(), world, kerneltest.App, "", kerneltest.Pod4+":8080")
			if out.Banner != c.out || in.Banner != c.in {
				t.Errorf("out of the pod answered %q, into it %q, want %q and %q", out.Banner, in.Banner, c.out, c.in)
			}
		})
	}
}

// With the iptables backend a table of ours may come before another one: what others have in it, behind our rules, still preempts the rest.
func TestPreempting_rulesBehindOursInAnEarlierTable_areReported(t *testing.T) {
	for _, flavour := range []xtables.Flavour{xtables.NFT, xtables.Legacy} {
		for _, mode := range []iptables.Mode{iptables.ModeRedirect, iptables.ModeTProxy} {
			pod, b := kerneltest.New(t), xtables.New(t.Context(), xtables.Config{Flavour: flavour})
			rules := configuration{spec: with(func(s *iptables.Spec) { s.Mode = mode })}.rules(t)
			if _, err := b.Apply(t.Context(), pod, rules); err != nil {
				t.Fatal(err)
			}
			for _, step := range []struct{ rule, reports string }{
				{"-t nat -A OUTPUT -p tcp --dport 80 -j REDIRECT --to-ports 9", ""},
				{"-t mangle -A POSTROUTING -p tcp --dport 9 -j MARK --set-mark 5", ""},
				{"-t mangle -A OUTPUT -p tcp --dport 80 -j DROP", "chain OUTPUT (output, priority -150) has rules"},
			} {
				kerneltest.Shell(t, pod, "iptables-"+string(flavour)+" "+step.rule, "")
				lines, err := foreign.Preempting(t.Context(), pod, foreign.OursOf(rules, true))
				if reported := strings.Join(lines, "\n"); err != nil || (reported == "") != (step.reports == "") || !strings.Contains(reported, step.reports) || len(lines) > 1 {
					t.Errorf("%s, %s, after %s: reported %q, error %v", flavour, mode, step.rule, reported, err)
				}
			}
		}
	}
}
