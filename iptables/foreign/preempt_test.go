package foreign

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

func defaultOurs(t testing.TB) Ours {
	t.Helper()
	rules, err := iptables.Rules(iptables.DefaultSpec())
	if err != nil {
		t.Fatal(err)
	}
	return OursOf(rules, false)
}

// A pod may fill its namespace with whatever it likes.
func TestPreempting_fullNamespace_isBounded(t *testing.T) {
	for name, script := range map[string]func(b *strings.Builder){
		"long chains": func(b *strings.Builder) {
			b.WriteString("add table inet x\nadd chain inet x c { type filter hook output priority -310; }\n")
			for range 20_000 {
				b.WriteString("add rule inet x c tcp dport 9 drop\n")
			}
		},
		"chains in a circle of many": func(b *strings.Builder) {
			b.WriteString("add table inet x\nadd chain inet x c { type filter hook output priority -310; }\n")
			for i := range 2_000 {
				fmt.Fprintf(b, "add chain inet x d%d\nadd rule inet x c tcp dport %d jump d%d\n", i, i, i)
			}
		},
		"rules that do nothing": func(b *strings.Builder) {
			b.WriteString("add table inet x\nadd chain inet x c { type filter hook output priority -310; }\n")
			for range 20_000 {
				b.WriteString("add rule inet x c tcp dport 9 counter\n")
			}
		},
		"base chains whose rules do nothing": func(b *strings.Builder) {
			b.WriteString("add table inet x\nadd chain inet x d\nadd rule inet x d counter\n")
			for i := range 1_200 { // a hook has 1024 at most
				hook := []string{"output", "prerouting"}[i%2]
				fmt.Fprintf(b, "add chain inet x c%d { type filter hook %s priority -310; }\nadd rule inet x c%d tcp dport 9 jump d\n", i, hook, i)
			}
		},
		"base chains": func(b *strings.Builder) {
			b.WriteString("add table inet x\n")
			for i := range 1_000 {
				fmt.Fprintf(b, "add chain inet x c%d { type filter hook output priority -310; }\nadd rule inet x c%d drop\n", i, i)
			}
		},
		"tables behind ours": func(b *strings.Builder) {
			for i := range 1_000 {
				fmt.Fprintf(b, "add table inet x%d\nadd chain inet x%d c { type filter hook output priority 0; }\nadd rule inet x%d c counter\n", i, i, i)
			}
		},
		"rules behind ours": func(b *strings.Builder) {
			b.WriteString("add table inet x\nadd chain inet x c { type filter hook output priority 0; }\n")
			for range 20_000 {
				b.WriteString("add rule inet x c tcp dport 9 counter\n")
			}
		},
	} {
		ns := kerneltest.New(t)
		var b strings.Builder
		script(&b)
		kerneltest.Shell(t, ns, "nft -f -", b.String())
		start := time.Now()
		lines, err := Preempting(t.Context(), ns, defaultOurs(t))
		if took := time.Since(start); err != nil || took > time.Second || len(lines) > maxPreempted+1 || len(lines) == 0 {
			t.Errorf("%s: %d lines after %s, error %v", name, len(lines), took, err)
		}
	}
}

// A chain counts by its place, its policy, and what its rules do.
func TestPreempting_byPlaceOfChain(t *testing.T) {
	kerneltest.ProgramPath(t, "iptables-legacy")
	table := func(family, chain string) string { return "nft 'table " + family + " x {\n" + chain + "\n}'" }
	const large = `{ echo '*mangle'; seq -f '-A OUTPUT -p udp -m comment --comment %.0f -j ACCEPT' 16000; echo COMMIT; } | iptables-legacy-restore`
	const olderHasNoEgress = " || uname -r | grep -E '^5[.](4|10|15)[.]'" // it is of Linux 5.16
	for name, c := range map[string]struct{ script, want string }{
		"ingress of a device":                   {table("netdev", "chain c { type filter hook ingress device lo priority 500; meta mark set 1337; }"), "nftables, table netdev x, chain c (ingress, priority 500) sets a mark"},
		"ingress of a table for both families":  {table("inet", "chain c { type filter hook ingress device lo priority 0; tcp dport 80 drop; }"), "nftables, table inet x, chain c (ingress, priority 0) drops"},
		"egress":                                {table("netdev", "chain c { type filter hook egress device lo priority -500; drop; }") + olderHasNoEgress, ""},
		"early input":                           {table("ip", "chain c { type filter hook input priority -150; tcp dport 80 drop; }"), "nftables, table ip x, chain c (input, priority -150) drops"},
		"input at the place of a firewall":      {table("inet", "chain c { type filter hook input priority 0; policy drop; tcp dport 80 drop; }"), ""},
		"nat at input":                          {table("ip", "chain c { type nat hook input priority -190; accept; }"), ""},
		"forward and postrouting":               {table("inet", "chain c { type filter hook forward priority -500; drop; }\nchain d { type filter hook postrouting priority -500; drop; }"), ""},
		"no rules":                              {table("inet", "chain c { type filter hook output priority -310; }\nchain d { drop; }"), ""},
		"no rules, and a policy":                {table("inet", "chain c { type filter hook output priority -310; policy drop; }"), "nftables, table inet x, chain c (output, priority -310) drops by its policy"},
		"our table's name in another family":    {"nft 'table ip pod-network-controller {\nchain c { type filter hook output priority -310; drop; }\n}'", "nftables, table ip pod-network-controller, chain c (output, priority -310) drops"},
		"our own table":                         {"nft 'table inet pod-network-controller {\nchain c { type filter hook output priority -310; drop; }\n}'", ""},
		"a long comment":                        {table("inet", `chain c { comment "`+strings.Repeat("x", 120)+`"; type filter hook output priority -310; `+strings.Repeat("tcp dport 9 counter; ", 90)+"drop; }"), "drops"},
		"legacy, input":                         {"iptables-legacy -t mangle -A INPUT -p tcp -j DROP", "legacy iptables, table ip mangle, chain INPUT (input, priority -150) drops"},
		"legacy, input at a firewall's place":   {"iptables-legacy -A INPUT -j DROP; iptables-legacy -t nat -A INPUT -j ACCEPT", ""},
		"legacy, of IPv6":                       {"ip6tables-legacy -t raw -A PREROUTING -p tcp -j DROP", "legacy iptables, table ip6 raw, chain PREROUTING (prerouting, priority -300) drops"},
		"legacy, no rules":                      {"for t in raw mangle nat; do iptables-legacy -t $t -N X; iptables-legacy -t $t -A X -j RETURN; done", ""},
		"legacy, no rules, and a policy":        {"iptables-legacy -t mangle -P PREROUTING DROP", "legacy iptables, table ip mangle, chain PREROUTING (prerouting, priority -150) drops by its policy"},
		"legacy, behind ours":                   {"iptables-legacy -t nat -A OUTPUT -j ACCEPT; iptables-legacy -t mangle -A FORWARD -j DROP", ""},
		"legacy, a table that is too large":     {large, "legacy iptables, table ip mangle, chain OUTPUT (output, priority -150) is too large to be read"},
		"a chain of others with a name of ours": {"iptables-legacy -t mangle -N PODNET_OUTBOUND; iptables-legacy -t mangle -A PODNET_OUTBOUND -j DROP; iptables-legacy -t mangle -A OUTPUT -j PODNET_OUTBOUND", "chain OUTPUT (output, priority -150) drops in chain PODNET_OUTBOUND"},
	} {
		ns := kerneltest.New(t)
		kerneltest.Shell(t, ns, c.script, "")
		lines, err := Preempting(t.Context(), ns, defaultOurs(t))
		if got := strings.Join(lines, "\n"); err != nil || (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, error %v, want %q", name, got, err, c.want)
		}
	}
}

// Which packets are ours depends on what the pod asks for.
func TestPreempting_byWhatIsCaptured(t *testing.T) {
	dns := func(s *iptables.Spec) { s.DNS = iptables.DNSAll }
	tproxy := func(s *iptables.Spec) { s.Mode = iptables.ModeTProxy }
	behind := func(s *iptables.Spec) { s.RerouteInterfaces = []string{"net1"} }
	early := func(rule string) string {
		return "nft 'table ip x {\nchain c { type filter hook prerouting priority -310; " + rule + "; }\n}'"
	}
	for name, c := range map[string]struct {
		rule              string
		ask               func(*iptables.Spec)
		without, captured string // what is reported without what the pod asks for, and with it
	}{
		"lookups":                         {"meta l4proto udp drop", dns, "", "drops"},
		"a mark of lookups":               {"meta l4proto udp meta mark set ct mark", dns, "", "sets a mark"},
		"another protocol":                {"meta l4proto icmp drop", dns, "", ""},
		"a bit of the proxy's other mark": {"meta mark set meta mark or 0x2", tproxy, "", "sets a mark"},
		"a connection's mark":             {"ct mark set 1", tproxy, "", "sets a connection's mark"},
		"other bits of a connection's":    {"ct mark set ct mark and 0xffffbfff or 0x4000", tproxy, "", "sets a connection's mark"},
		"other bits of a packet's":        {"meta mark set meta mark and 0xffffbfff or 0x4000", tproxy, "", "sets a mark"},
		"other bits to 0":                 {"meta mark set meta mark and 0xffffbfff", tproxy, "", ""},
		"another destination":             {"ip daddr 10.88.0.0/16 drop", tproxy, "", "drops"},
		"one behind the pod":              {"ip daddr 10.88.0.0/16 drop", behind, "", "drops"},
	} {
		for _, asks := range []bool{false, true} {
			spec, want := iptables.DefaultSpec(), c.without
			if asks {
				c.ask(&spec)
				want = c.captured
			}
			rules, err := iptables.Rules(spec)
			if err != nil {
				t.Fatal(err)
			}
			ns := kerneltest.New(t)
			kerneltest.Shell(t, ns, early(c.rule), "")
			lines, err := Preempting(t.Context(), ns, OursOf(rules, false))
			if got := strings.Join(lines, "\n"); err != nil || (got == "") != (want == "") || !strings.HasSuffix(got, want) {
				t.Errorf("%s, captured %t: %q, error %v, want %q", name, asks, got, err, want)
			}
		}
	}
}

// More addresses or devices than are read acquit no rule.
func TestPreempting_manyAddresses_acquitNothing(t *testing.T) {
	for name, c := range map[string]struct{ many, want string }{
		"few":            {"true", ""},
		"many addresses": {"for i in $(seq 1 3); do for j in $(seq 1 200); do echo address add 10.99.$i.$j/32 dev lo; done; done | ip -batch -", "drops"},
		"any address":    {"ip link set lo up; ip route add local 10.88.0.0/16 dev lo", "drops"},
	} {
		ns := kerneltest.New(t)
		kerneltest.Shell(t, ns, c.many+"; iptables-nft -t raw -A PREROUTING -d 10.88.0.1 -j DROP", "")
		lines, err := Preempting(t.Context(), ns, defaultOurs(t))
		if got := strings.Join(lines, "\n"); err != nil || (got == "") != (c.want == "") || !strings.HasSuffix(got, c.want) {
			t.Errorf("%s: %q, error %v", name, got, err)
		}
	}
}

// What the kernel returns of a chain was written by the pod.
func FuzzBaseOf(f *testing.F) {
	f.Add(append([]byte{unix.NFPROTO_INET, 0, 0, 0}, rawnetlink.Text(unix.NFTA_CHAIN_NAME, "c")...))
	f.Fuzz(func(_ *testing.T, body []byte) { baseOf(body) })
}

// So was a legacy table.
func FuzzLegacyTable(f *testing.F) {
	f.Add(make([]byte, infoSize), make([]byte, 4*legacyFamilies()[0].size))
	f.Fuzz(func(_ *testing.T, info, entries []byte) {
		for _, family := range legacyFamilies() {
			t := legacyTable{legacyFamily: family, info: info, entries: entries}
			rules := t.rulesOf(nowhere(), nil)
			for hook := range uint32(5) {
				t.dropsByPolicy(hook)
				rules.does(hook)
			}
			t.undoes(nil)
			t.reached()
		}
	})
}
