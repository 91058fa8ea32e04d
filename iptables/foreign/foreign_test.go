package foreign

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/test/kerneltest"
)

// find gives who was found and by what, as text; "" is nobody.
func find(t testing.TB, ns *netns.NS) string {
	t.Helper()
	found, err := Find(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	if found == nil {
		return ""
	}
	return found.Owner + ": " + found.Found
}

func TestFind_chainsOfKnownProjects_areRecognised(t *testing.T) {
	kerneltest.ProgramPath(t, "iptables-legacy")
	redirect := func(program, table, chain string) string {
		return fmt.Sprintf("%[1]s -t %[2]s -N %[3]s; %[1]s -t %[2]s -A %[3]s -p tcp -j RETURN; %[1]s -t %[2]s -A PREROUTING -p tcp -j %[3]s", program, table, chain)
	}
	for name, c := range map[string]struct{ script, want string }{
		"nothing":                        {"true", ""},
		"Istio, iptables-nft":            {redirect("iptables-nft", "nat", "ISTIO_OUTPUT"), "Istio: chain ISTIO_OUTPUT in table ip nat"},
		"Istio, ip6tables-nft":           {redirect("ip6tables-nft", "nat", "ISTIO_INBOUND"), "Istio: chain ISTIO_INBOUND in table ip6 nat"},
		"Istio, mangle alone":            {redirect("iptables-nft", "mangle", "ISTIO_INBOUND"), "Istio: chain ISTIO_INBOUND in table ip mangle"},
		"Istio, iptables-legacy":         {redirect("iptables-legacy", "nat", "ISTIO_OUTPUT"), "Istio: chain ISTIO_OUTPUT in the legacy table ip nat"},
		"Istio, ip6tables-legacy":        {redirect("ip6tables-legacy", "mangle", "ISTIO_INBOUND"), "Istio: chain ISTIO_INBOUND in the legacy table ip6 mangle"},
		"Istio, native":                  {"nft 'add table inet istio-proxy-nat; add chain inet istio-proxy-nat output'", "Istio: nftables table inet istio-proxy-nat"},
		"Istio, native, mangle alone":    {"nft 'add table inet istio-proxy-mangle; add chain inet istio-proxy-mangle x'", "Istio: nftables table inet istio-proxy-mangle"},
		"Istio, ambient":                 {redirect("iptables-nft", "nat", "ISTIO_PRERT"), "Istio: chain ISTIO_PRERT in table ip nat"},
		"linkerd":                        {redirect("iptables-nft", "nat", "PROXY_INIT_REDIRECT"), "linkerd: chain PROXY_INIT_REDIRECT in table ip nat"},
		"linkerd, legacy":                {redirect("iptables-legacy", "nat", "PROXY_INIT_OUTPUT"), "linkerd: chain PROXY_INIT_OUTPUT in the legacy table ip nat"},
		"Kuma":                           {redirect("iptables-nft", "nat", "KUMA_MESH_INBOUND"), "Kuma: chain KUMA_MESH_INBOUND in table ip nat"},
		"Kuma, legacy":                   {redirect("ip6tables-legacy", "nat", "KUMA_MESH_OUTBOUND"), "Kuma: chain KUMA_MESH_OUTBOUND in the legacy table ip6 nat"},
		"Consul":                         {redirect("iptables-nft", "nat", "CONSUL_PROXY_INBOUND"), "Consul: chain CONSUL_PROXY_INBOUND in table ip nat"},
		"Consul, lookups alone":          {redirect("iptables-nft", "nat", "CONSUL_DNS_REDIRECT"), "Consul: chain CONSUL_DNS_REDIRECT in table ip nat"},
		"Consul, native":                 {"nft 'add table inet consul_tproxy; add chain inet consul_tproxy x'", "Consul: nftables table inet consul_tproxy"},
		"Consul, native in a plain name": {"nft 'add table inet nat; add chain inet nat CONSUL_PROXY_OUTPUT; add rule inet nat CONSUL_PROXY_OUTPUT return'", "Consul: chain CONSUL_PROXY_OUTPUT in table inet nat"},
		"an empty chain that is left over": {
			"iptables-nft -t nat -N ISTIO_OUTPUT; nft add table inet istio-proxy-raw", "",
		},
		"chains with rules that no packet comes to": {
			`for p in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do $p -t nat -N ISTIO_OUTPUT; $p -t nat -A ISTIO_OUTPUT -j RETURN; $p -t nat -A OUTPUT -j RETURN; done`, "",
		},
		"a chain of another name with a longer one": {
			`for p in iptables-nft iptables-legacy; do $p -t nat -N ISTIO_OUTPUT; $p -t nat -A ISTIO_OUTPUT -j RETURN; $p -t nat -N ISTIO_OUTPUTS; $p -t nat -A OUTPUT -j ISTIO_OUTPUTS; done`, "",
		},
		"the chain behind other rules, by goto": {
			"iptables-nft -t nat -N KUMA_MESH_OUTBOUND; iptables-nft -t nat -A OUTPUT -p udp -j RETURN; iptables-nft -t nat -A OUTPUT -p tcp -g KUMA_MESH_OUTBOUND",
			"Kuma: chain KUMA_MESH_OUTBOUND in table ip nat",
		},
		"a comment with the name": {
			`for p in iptables-nft iptables-legacy; do $p -t nat -A OUTPUT -m comment --comment ISTIO_OUTPUT -j RETURN; done`, "",
		},
		"rules of ours and of the cluster's": {
			`for p in iptables-nft iptables-legacy; do $p -t nat -N PODNET_OUTBOUND; $p -t nat -A OUTPUT -j PODNET_OUTBOUND; $p -t nat -N KUBE-SERVICES; done
nft 'add table inet pod-network-controller; add chain inet pod-network-controller outbound'`, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.New(t)
			kerneltest.Shell(t, ns, c.script, "")
			if got := find(t, ns); got != c.want {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}

// To look must not make the tables of the other flavour.
func TestFind_freshNamespace_makesNoTable(t *testing.T) {
	ns := kerneltest.New(t)
	const everything = "nft list ruleset; cat /proc/self/net/ip_tables_names /proc/self/net/ip6_tables_names"
	if got := find(t, ns); got != "" {
		t.Error(got)
	}
	if out := kerneltest.Shell(t, ns, everything, ""); out != "" {
		t.Errorf("a look made %s", out)
	}
}

// A pod may fill its namespace with whatever it likes.
func TestFind_fullNamespace_costsTheSame(t *testing.T) {
	ns := kerneltest.New(t)
	var b strings.Builder
	b.WriteString("add table ip nat\nadd table inet istio-proxy\n")
	for i := range 10_000 {
		fmt.Fprintf(&b, "add chain ip nat c%d\n", i)
	}
	for i := range 2_000 {
		fmt.Fprintf(&b, "add table inet t%d\n", i)
	}
	kerneltest.Shell(t, ns, "nft -f -", b.String())
	if got := find(t, ns); got != "" {
		t.Error(got)
	}
	if n := testing.AllocsPerRun(5, func() { find(t, ns) }); n > 500 {
		t.Errorf("a look made %.0f allocations", n)
	}
}

func TestFind_contextIsOver_ends(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Find(ctx, kerneltest.New(t)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func BenchmarkNothingThere(b *testing.B) {
	ns := kerneltest.New(b)
	for b.Loop() {
		if find(b, ns) != "" {
			b.Fatal("found")
		}
	}
}
