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
		"a legacy queue behind our rules": {"iptables-legacy -A OUTPUT -p tcp --dport 15001 -j NFQUEUE", "legacy iptables, table ip filter sends packets elsewhere behind our rules", "", captured},
		"a legacy queue at input":         {"iptables-legacy -A INPUT -p tcp --dport 15006 -j NFQUEUE", "legacy iptables, table ip filter sends packets elsewhere behind our rules", proxied, ""},
		"a legacy copy behind our rules":  {"iptables-legacy -t mangle -A POSTROUTING -p tcp --dport 15001 -j TEE --gateway 10.244.1.1", "legacy iptables, table ip mangle sends packets elsewhere behind our rules", proxied, captured},
		"a legacy firewall behind ours":   {"iptables-legacy -A OUTPUT -p tcp --dport 9 -j REJECT; iptables-legacy -A INPUT -p udp -j DROP", "", proxied, captured},
		"a queue behind our rules":        {"iptables-nft -A OUTPUT -p tcp --dport 15001 -j NFQUEUE --queue-bypass", "table ip filter, chain OUTPUT sends packets elsewhere", proxied, captured},
		"a firewall behind our rules":     {"iptables-nft -A OUTPUT -p tcp --dport 9 -j REJECT; iptables-nft -A INPUT -p udp -j DROP", "", proxied, captured},
		"other TTLs, DSCPs and MSS":       {nftTable("chain c { type filter hook postrouting priority 0; ip ttl set 60; ip6 hoplimit set 60; ip dscp set cs1; tcp flags syn tcp option maxseg size set 1200; }"), "", proxied, captured},
	}
}

func preemptCases() map[string]preemptCase {
	const proxied, captured = "PROXY:15001", "PROXY:15006"
	return map[string]preemptCase{
		"a redirect in an earlier nat chain": {
			nftTable("chain c { type nat hook output priority -150; tcp dport 80 redirect to :9999; }"), "chain c (output, priority -150) changes the destination", "OTHER:9999", captured,
		},
		"a redirect in a chain that an earlier nat chain jumps to": {
			nftTable("chain d { counter; meta l4proto tcp redirect to :9999; }\nchain c { type nat hook output priority -150; ip daddr 93.184.216.34 jump d; }"), "chain c (output, priority -150) changes the destination in chain d", "OTHER:9999", captured,
		},
		"a new destination by iptables, in an earlier nat chain": {
			nftTable("chain c { type nat hook prerouting priority -106; tcp dport 8080 dnat ip to 10.244.1.5:9999; }"), "(prerouting, priority -106) changes the destination", proxied, "OTHER:9999",
		},
		"a drop in an earlier nat chain":                {nftTable("chain c { type nat hook output priority -150; tcp dport 80 drop; }"), "chain c (output, priority -150) drops", "", captured},
		"a drop in an earlier filter chain":             {nftTable("chain c { type filter hook prerouting priority -150; tcp dport 8080 drop; }"), "(prerouting, priority -150) drops", proxied, ""},
		"a map of verdicts":                             {nftTable("chain c { type filter hook output priority -150; tcp dport vmap { 80 : drop }; }"), "decides by a map", "", captured},
		"a policy that drops":                           {nftTable("chain c { type filter hook output priority -300; policy drop; oifname lo accept; tcp sport 15006 accept; }"), "drops by its policy", "", captured},
		"no connection tracking":                        {nftTable("chain c { type filter hook output priority -310; tcp dport 80 notrack; }"), "switches connection tracking off", "", captured},
		"Istio's mark":                                  {nftTable("chain c { type filter hook prerouting priority -150; tcp dport 8080 meta mark set 1337; }"), "sets a mark", proxied, captured},
		"Istio's mark by iptables":                      {"iptables-nft -t mangle -A PREROUTING -p tcp --dport 8080 -j MARK --set-mark 1337", "sets a mark", proxied, captured},
		"a drop in a legacy table":                      {"iptables-legacy -t mangle -N X; iptables-legacy -t mangle -A X -p tcp -j DROP; iptables-legacy -t mangle -A OUTPUT -d 93.184.216.34 -j X", "legacy iptables, table ip mangle, chain OUTPUT (output, priority -150) drops in chain X", "", captured},
		"no connection tracking by legacy":              {"iptables-legacy -t raw -A OUTPUT -p tcp --dport 80 -j CT --notrack", "legacy iptables, table ip raw, chain OUTPUT (output, priority -300) switches connection tracking off", "", captured},
		"what is done before the protocol is looked at": {nftTable("chain c { type filter hook output priority -310; tcp dport 80 notrack meta l4proto udp; }"), "switches connection tracking off", "", captured},
		"a chain that is called like one of ours":       {nftTable("chain PODNET_OUTBOUND { tcp dport 80 notrack; }\nchain OUTPUT { type filter hook output priority -310; jump PODNET_OUTBOUND; }"), "chain OUTPUT (output, priority -310) switches connection tracking off in chain PODNET_OUTBOUND", "", captured},
		"Istio's mark in an earlier nat chain":          {nftTable("chain c { type nat hook prerouting priority -150; tcp dport 8080 meta mark set 1337; }"), "sets a mark", proxied, captured},
		"a mark that comes from the connection":         {"iptables-legacy -t mangle -A PREROUTING -p tcp --dport 8080 -j CONNMARK --set-mark 1337; iptables-legacy -t mangle -A PREROUTING -p tcp --dport 8080 -j CONNMARK --restore-mark", "sets a mark", proxied, captured},
		"a legacy queue without a reader":               {"iptables-legacy -t mangle -A OUTPUT -p tcp --dport 80 -j QUEUE", "queues packets for a program", "", captured},
		"a legacy mark":                                 {"iptables-legacy -t mangle -A PREROUTING -p tcp --dport 8080 -j MARK --set-mark 1337", "legacy iptables, table ip mangle, chain PREROUTING (prerouting, priority -150) sets a mark", proxied, captured},
		"a legacy policy that drops":                    {"iptables-legacy -t mangle -A OUTPUT -o lo -j ACCEPT; iptables-legacy -t mangle -A OUTPUT -p tcp --sport 15006 -j ACCEPT; iptables-legacy -t mangle -P OUTPUT DROP", "drops by its policy", "", captured},
		"Istio's mark at ingress": {
			"nft 'table netdev x {\nchain c { type filter hook ingress device eth0 priority 0; tcp dport 8080 meta mark set 1337; }\n}'", "table netdev x, chain c (ingress, priority 0) sets a mark", proxied, captured,
		},
		"nothing":                            {"true", "", proxied, captured},
		"a plain accept in earlier chains":   {nftTable("chain c { type nat hook output priority -150; tcp dport 80 accept; }\nchain d { type filter hook prerouting priority -200; accept; }"), "", proxied, captured},
		"what an accept hides":               {nftTable("chain c { type filter hook output priority -200; counter accept; drop; }"), "", proxied, captured},
		"a redirect for another protocol":    {nftTable("chain c { type nat hook output priority -150; udp dport 80 redirect to :9999; }"), "", proxied, captured},
		"a redirect in a later nat chain":    {nftTable("chain c { type nat hook output priority -100; tcp dport 80 redirect to :9999; }"), "", proxied, captured},
		"a redirect by iptables":             {"iptables-nft -t nat -A OUTPUT -p tcp --dport 80 -j REDIRECT --to-ports 9999; iptables-nft -t nat -A PREROUTING -p tcp --dport 8080 -j REDIRECT --to-ports 9999", "", proxied, captured},
		"a redirect by legacy iptables":      {"iptables-legacy -t nat -A OUTPUT -p tcp --dport 80 -j REDIRECT --to-ports 9999", "", proxied, captured},
		"a drop after our rules":             {nftTable("chain c { type filter hook output priority 0; ip daddr 93.184.216.34 tcp dport 80 drop; }"), "", proxied, captured},
		"chains that no packet comes to":     {"for p in iptables-nft iptables-legacy; do for t in nat mangle; do $p -t $t -N KUBE-KUBELET-CANARY; $p -t $t -A KUBE-KUBELET-CANARY -j DROP 2>/dev/null || true; done; done", "", proxied, captured},
		"masquerading behind our rules":      {"iptables-nft -t nat -N KUBE-POSTROUTING; iptables-nft -t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN; iptables-nft -t nat -A KUBE-POSTROUTING -j MASQUERADE; iptables-nft -t nat -A POSTROUTING -j KUBE-POSTROUTING", "", proxied, captured},
		"another mark":                       {"iptables-nft -t mangle -A PREROUTING -p tcp -j MARK --set-mark 5; " + nftTable("chain c { type route hook output priority -160; meta mark set 5; }"), "sets a mark", proxied, captured},
		"bits that are in none of our marks": {"iptables-legacy -t mangle -A PREROUTING -p tcp -j MARK --set-xmark 0x4000/0x4000; " + nftTable("chain c { type filter hook prerouting priority -160; meta mark set meta mark or 0x4000; }"), "", proxied, captured},
		"another mark in a legacy table":     {"iptables-legacy -t mangle -A PREROUTING -p tcp -j MARK --set-mark 5", "sets a mark", proxied, captured},
		"a legacy drop for another protocol": {"iptables-legacy -t raw -A OUTPUT -p udp -j DROP; ip6tables-legacy -t raw -A OUTPUT -p udp -j DROP", "", proxied, captured},
		"a zone that our rules would set":    {"iptables-legacy -t raw -A PREROUTING -p tcp --dport 21 -j CT --zone 0", "sets a zone of connection tracking", proxied, captured},
	}
}

// detailCases are rules whose conditions or options decide.
func detailCases() map[string]preemptCase {
	const proxied, captured = "PROXY:15001", "PROXY:15006"
	return map[string]preemptCase{
		"a lone counter":                                  {nftTable("chain c { type filter hook output priority -310; counter; }\nchain d { type filter hook prerouting priority -310; meta l4proto tcp counter log; }"), "", proxied, captured},
		"a drop in a chain without a name":                {nftTable("chain c { type filter hook output priority -150; tcp dport 80 jump { counter; drop; }; }"), "(output, priority -150) drops in chain __chain", "", captured},
		"a drop behind an accept for others":              {nftTable("chain c { type filter hook output priority -200; tcp dport 443 accept; tcp dport 80 drop; }"), "drops", "", captured},
		"a chain of chains":                               {nftTable("chain f { drop; }\nchain e { tcp dport 80 goto f; }\nchain d { counter jump e; }\nchain c { type filter hook output priority -150; jump d; accept; }"), "drops in chain f", "", captured},
		"a drop for the pod's address":                    {nftTable("chain c { type filter hook prerouting priority -150; ip daddr 10.244.1.0/24 tcp dport 8080 drop; }"), "drops", proxied, ""},
		"a drop for another address":                      {nftTable("chain c { type filter hook prerouting priority -150; ip daddr 10.88.0.0/16 drop; ip daddr 10.244.1.6 drop; ip6 daddr 2001:db8::/64 drop; }"), "", proxied, captured},
		"a drop of another source":                        {nftTable("chain c { type filter hook output priority -150; ip saddr 10.88.0.0/16 drop; }"), "", proxied, captured},
		"a drop of the pod's source":                      {nftTable("chain c { type filter hook output priority -150; ip saddr 10.244.0.0/16 tcp dport 80 drop; }"), "drops", "", captured},
		"a drop for all other addresses":                  {nftTable("chain c { type filter hook prerouting priority -150; iifname eth0 ip daddr != 10.88.0.1 drop; }"), "drops", proxied, ""},
		"a device that does not exist":                    {nftTable("chain c { type filter hook prerouting priority -150; iifname \"wg9\" drop; iifname \"wg*\" drop; }\nchain d { type filter hook output priority -150; oifname \"wg9\" drop; }"), "", proxied, captured},
		"any other device":                                {nftTable("chain c { type filter hook prerouting priority -150; iifname != \"wg9\" tcp dport 8080 drop; }"), "drops", proxied, ""},
		"legacy, a device that does not exist":            {"iptables-legacy -t mangle -A PREROUTING -i wg+ -j DROP; iptables-legacy -t mangle -A OUTPUT -o wg9 -j DROP; ip6tables-legacy -t raw -A PREROUTING -i wg9 -j DROP", "", proxied, captured},
		"legacy, any other device":                        {"iptables-legacy -t mangle -A PREROUTING ! -i wg9 -p tcp --dport 8080 -j DROP", "drops", proxied, ""},
		"a loopback address that comes in, and one on lo": {nftTable("chain c { type filter hook prerouting priority -150; iifname != lo ip daddr 127.0.0.0/8 drop; iifname != lo ip6 daddr ::1 drop; }\nchain d { type filter hook prerouting priority -149; ip daddr 127.0.0.1 tcp dport 15001 drop; }"), "chain d (prerouting, priority -149) drops", "", captured},
		"legacy, another address":                         {"iptables-legacy -t raw -A PREROUTING -d 10.88.0.0/16 -j DROP; iptables-legacy -t raw -A OUTPUT -s 10.88.0.1 -j DROP; ip6tables-legacy -t raw -A PREROUTING -d 2001:db8::1 -j DROP", "", proxied, captured},
		"legacy, the pod's address":                       {"iptables-legacy -t raw -A PREROUTING -d 10.244.1.5 -p tcp --dport 8080 -j DROP", "(prerouting, priority -300) drops", proxied, ""},
		"a mark that the socket has":                      {"iptables-nft -t mangle -A PREROUTING -p tcp -m socket --restore-skmark -j ACCEPT", "sets a mark", proxied, captured},
		"other bits of both marks":                        {nftTable("chain c { type filter hook prerouting priority -310; meta mark set meta mark and 0xffffbfff or 0x4000; ct mark set 0x40000; ct label set 1; meta priority set 1; }"), "", proxied, captured},
		"a lower MSS and a TTL":                           {"for p in nft legacy; do iptables-$p -t mangle -A OUTPUT -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1200; iptables-$p -t mangle -A OUTPUT -j TTL --ttl-set 60; iptables-$p -t mangle -A OUTPUT -j NFLOG; iptables-$p -t mangle -A OUTPUT -j CLASSIFY --set-class 1:2; done", "", proxied, captured},
		"a rejection":                                     {"iptables-nft -t mangle -N x; " + nftTable("chain c { type filter hook output priority -150; tcp dport 80 reject; }"), "drops", "", captured},
		"a copy before ours":                              {"iptables-legacy -t mangle -A OUTPUT -p tcp --dport 80 -j TEE --gateway 10.244.1.1", "copies packets", "", captured},
	}
}

// nftCases are the rules of programs that use nftables, as they write them.
func nftCases() map[string]preemptCase {
	const proxied, captured = "PROXY:15001", "PROXY:15006"
	return map[string]preemptCase{
		"wg-quick, nft": {
			wg0 + "nft 'table ip wg-quick-wg0 {\nchain preraw { type filter hook prerouting priority -300; iifname != \"wg0\" ip daddr 10.0.0.2 fib saddr type != local drop; }\n" +
				"chain premangle { type filter hook prerouting priority -150; meta l4proto udp meta mark set ct mark; }\n" +
				"chain postmangle { type filter hook postrouting priority -150; meta l4proto udp mark 51820 ct mark set mark; }\n}'", "table ip wg-quick-wg0, chain preraw (prerouting, priority -300) drops", proxied, captured,
		},
		"wg-quick's marks, nft": {
			"nft 'table ip wg-quick-wg0 {\nchain premangle { type filter hook prerouting priority -150; meta l4proto udp meta mark set ct mark; }\n}'", "", proxied, captured,
		},
		// The proxy's answers come over lo, from the address to which the connection seems to lead, and to the tunnel's.
		"wg-quick, connections through the tunnel": {
			wg0 + "ip route add 93.184.216.34 dev wg0 src 10.0.0.2; nft 'table ip wg-quick-wg0 {\nchain preraw { type filter hook prerouting priority -300; iifname != \"wg0\" ip daddr 10.0.0.2 fib saddr type != local drop; }\n}'",
			"drops", "", captured,
		},
		"kube-proxy, nft": {
			"nft 'table ip kube-proxy {\nmap firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }\nchain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }\n" +
				"chain filter-prerouting-pre-dnat { type filter hook prerouting priority -110; ct state new jump firewall-check; }\n}'", "decides by a map in chain firewall-check", proxied, captured,
		},
		"CRIU's lock": {
			"nft 'table inet CRIU-1 {\nchain output { type filter hook output priority 0; policy drop; meta mark 0xc114 accept; }\nchain input { type filter hook input priority 0; policy drop; meta mark 0xc114 accept; }\n}'", "", "", "",
		},
		"portmap, nft": {
			"nft 'table inet cni_hostport {\nchain hostports { tcp dport 8081 dnat ip to 10.88.0.2:80; }\nchain prerouting { type nat hook prerouting priority -100; fib daddr type local jump hostports; }\n" +
				"chain output { type nat hook output priority -100; fib daddr type local jump hostports; }\n}'", "", proxied, captured,
		},
	}
}

// wg0 makes a device with the address of a tunnel.
const wg0 = "ip link add wg0 type veth peer name wg1; ip address add 10.0.0.2/32 dev wg0; ip link set wg0 up; "

// iptablesCases are the rules of programs that use iptables, as they write them, by either flavour.
func iptablesCases() map[string]preemptCase {
	const proxied, captured = "PROXY:15001", "PROXY:15006"
	const docker0 = "ip link add docker0 type veth peer name docker1; ip address add 172.17.0.1/16 dev docker0; ip link set docker0 up; "
	const marker = ` -m comment --comment "wg-quick(8) rule for wg0"`
	out := map[string]preemptCase{}
	for name, c := range map[string]preemptCase{
		"Docker": {
			docker0 + "iptables -t raw -A PREROUTING -d 172.17.0.2/32 ! -i docker0 -j DROP; iptables -t raw -A PREROUTING -p tcp -d 127.0.0.1 --dport 8081 ! -i lo -j DROP; iptables -t nat -N DOCKER; iptables -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER; " +
				"iptables -t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER; iptables -t nat -A DOCKER ! -i docker0 -p tcp --dport 8081 -j DNAT --to-destination 172.17.0.2:80; " +
				"iptables -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE", "", proxied, captured,
		},
		"wg-quick": {
			wg0 + "iptables -t raw -I PREROUTING ! -i wg0 -d 10.0.0.2 -m addrtype ! --src-type LOCAL -j DROP" + marker +
				"; iptables -t mangle -I POSTROUTING -m mark --mark 51820 -p udp -j CONNMARK --save-mark" + marker + "; iptables -t mangle -I PREROUTING -p udp -j CONNMARK --restore-mark" + marker,
			"table ip raw, chain PREROUTING (prerouting, priority -300) drops", proxied, captured,
		},
		"wg-quick's marks": {
			"iptables -t mangle -I POSTROUTING -m mark --mark 51820 -p udp -j CONNMARK --save-mark" + marker + "; iptables -t mangle -I PREROUTING -p udp -j CONNMARK --restore-mark" + marker, "", proxied, captured,
		},
		"Tailscale": {
			"iptables -t mangle -A PREROUTING -m conntrack --ctstate ESTABLISHED,RELATED -j CONNMARK --restore-mark --nfmask 0xff0000 --ctmask 0xff0000; " +
				"iptables -t mangle -A OUTPUT -m conntrack --ctstate NEW -m mark ! --mark 0x0/0xff0000 -j CONNMARK --save-mark --nfmask 0xff0000 --ctmask 0xff0000; " +
				"iptables -N ts-forward; iptables -A FORWARD -j ts-forward; iptables -A ts-forward -i tailscale0 -j MARK --set-xmark 0x40000/0xff0000; iptables -A ts-forward -o tailscale0 -j ACCEPT; " +
				"iptables -N ts-input; iptables -A INPUT -j ts-input; iptables -A ts-input -s 100.64.0.0/10 ! -i tailscale0 -j DROP; iptables -t nat -A POSTROUTING -m mark --mark 0x40000/0xff0000 -j MASQUERADE",
			"", proxied, captured,
		},
		"kube-proxy": {
			"iptables -t mangle -N KUBE-KUBELET-CANARY; iptables -t mangle -N KUBE-PROXY-CANARY; iptables -t nat -N KUBE-SERVICES; iptables -t nat -A PREROUTING -j KUBE-SERVICES; iptables -t nat -A OUTPUT -j KUBE-SERVICES; " +
				"iptables -N KUBE-FIREWALL; iptables -A OUTPUT -j KUBE-FIREWALL; iptables -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP; " +
				"iptables -t nat -N KUBE-MARK-MASQ; iptables -t nat -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000", "", proxied, captured,
		},
		"Cilium": {
			"iptables -t raw -N CILIUM_PRE_raw; iptables -t raw -A PREROUTING -j CILIUM_PRE_raw; iptables -t raw -A CILIUM_PRE_raw -m mark --mark 0x200/0xf00 -j CT --notrack", "switches connection tracking off in chain CILIUM_PRE_raw", proxied, captured,
		},
		"Calico": {
			"iptables -t raw -N cali-PREROUTING; iptables -t raw -A PREROUTING -j cali-PREROUTING; iptables -t raw -A cali-PREROUTING -j MARK --set-xmark 0x0/0xf0000; iptables -t raw -A cali-PREROUTING -i cali+ -j MARK --set-xmark 0x40000/0x40000; " +
				"iptables -t raw -A cali-PREROUTING -m mark --mark 0x40000/0x40000 -m rpfilter --validmark --invert -j DROP", "drops in chain cali-PREROUTING", proxied, captured,
		},
		"portmap": {
			"iptables -t nat -N CNI-HOSTPORT-DNAT; iptables -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT; iptables -t nat -A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT; " +
				"iptables -t nat -N CNI-HOSTPORT-SETMARK; iptables -t nat -A CNI-HOSTPORT-SETMARK -j MARK --set-xmark 0x2000/0x2000; iptables -t nat -A CNI-HOSTPORT-DNAT -p tcp --dport 8081 -j DNAT --to-destination 10.88.0.2:80",
			"", proxied, captured,
		},
		"a counter": {"iptables -t raw -A OUTPUT; iptables -t mangle -A PREROUTING -p tcp", "", proxied, captured},
	} {
		for _, flavour := range []string{"nft", "legacy"} {
			of := c
			of.script = strings.ReplaceAll(c.script, "iptables -", "iptables-"+flavour+" -")
			out[name+", iptables-"+flavour] = of
		}
	}
	return out
}

// What decides about packets before our rules is reported, with what it does. Rules that cannot decide about them are not.
func TestPreempting_whatDecidesBeforeOurs_isReported(t *testing.T) {
	t.Parallel()
	kerneltest.ProgramPath(t, "iptables-legacy")
	cases := preemptCases()
	for _, more := range []map[string]preemptCase{behindCases(), detailCases(), nftCases(), iptablesCases()} {
		maps.Copy(cases, more)
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of it is waiting for nobody
			mustReport(t, c)
		})
	}
}

// Whoever has more rules than are read is named. Alone: it takes a look 0.1 s of the processor, and a look ends after two seconds.
func TestPreempting_moreRulesThanAreRead_isReported(t *testing.T) {
	mustReport(t, preemptCase{`{ echo "table inet x {"; echo "chain c { type filter hook output priority 0;"; for i in $(seq 5000); do echo "tcp dport 9 counter"; done; echo "}"; echo "}"; } | nft -f -`, "nftables, table inet x has more rules behind ours than are read", "PROXY:15001", "PROXY:15006"})
}

func mustReport(t *testing.T, c preemptCase) {
	t.Helper()
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
}

// With TPROXY marks are compared whole: another bit takes the proxy's connections to its own pod past the inbound listener.
func TestPreempting_otherBitsOfMarksWithTProxy_areReported(t *testing.T) {
	for _, c := range []struct{ rule, reports, self string }{
		{"-t mangle -A PREROUTING -p tcp -j MARK --set-xmark 0x4000/0x4000", "sets a mark", "APP:8080"},
		{"-t mangle -A OUTPUT -p tcp -j MARK --set-xmark 0x4000/0x4000", "sets a mark", "APP:8080"},
		{"-t mangle -A PREROUTING -p tcp -j MARK --set-xmark 0x0/0x4000", "", "PROXY:15006"},
		{"-t mangle -A PREROUTING -m conntrack --ctstate ESTABLISHED,RELATED -j CONNMARK --restore-mark --nfmask 0xff0000 --ctmask 0xff0000", "", "PROXY:15006"},
	} {
		for _, program := range []string{"iptables-nft ", "iptables-legacy "} {
			pod, world := kerneltest.NewPod(t)
			proxy := kerneltest.Owner{UID: 0, GID: 1337}
			go kerneltest.Answer(kerneltest.ListenTCP(t, pod, proxy, true, "[::]:15006"), "PROXY:15006")
			kerneltest.Listen(t, pod, kerneltest.App, "APP", 8080)
			rules := configuration{spec: with(func(s *iptables.Spec) { s.Mode = iptables.ModeTProxy })}.rules(t)
			if _, err := nftables.New().Apply(t.Context(), pod, rules); err != nil {
				t.Fatal(err)
			}
			kerneltest.Shell(t, pod, program+c.rule, "")
			lines, err := foreign.Preempting(t.Context(), pod, foreign.OursOf(rules, false))
			if reported := strings.Join(lines, "\n"); err != nil || (reported == "") != (c.reports == "") || !strings.HasSuffix(reported, c.reports) {
				t.Errorf("%s%s: reported %q, error %v", program, c.rule, reported, err)
			}
			in, _ := kerneltest.Dial(t.Context(), world, kerneltest.App, "", kerneltest.Pod4+":8080")
			self, _ := kerneltest.Dial(t.Context(), pod, proxy, "", kerneltest.Pod4+":8080")
			if in.Banner != "PROXY:15006" || self.Banner != c.self {
				t.Errorf("%s%s: into the pod answered %q, to the proxy %q, want %q", program, c.rule, in.Banner, self.Banner, c.self)
			}
		}
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
				{"-t mangle -A OUTPUT -p tcp --dport 80 -j DROP", "chain OUTPUT (output, priority -150) drops"},
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
