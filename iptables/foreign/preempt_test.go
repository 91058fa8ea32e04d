package foreign

import (
	"encoding/binary"
	"fmt"
	"slices"
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
func TestPreemptionIsLookedForWithinBounds(t *testing.T) {
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
		"base chains": func(b *strings.Builder) {
			b.WriteString("add table inet x\n")
			for i := range 1_000 {
				fmt.Fprintf(b, "add chain inet x c%d { type filter hook output priority -310; }\nadd rule inet x c%d drop\n", i, i)
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

// A pod can write rules by which something else seems to be done than is done.
func TestNothingIsHiddenFromTheLookForPreemption(t *testing.T) {
	kerneltest.ProgramPath(t, "iptables-legacy")
	chain := func(family, rule string) string {
		return "nft 'table " + family + " x {\nchain c { type filter hook output priority -310; " + rule + "; }\n}'"
	}
	const large = `{ echo '*mangle'; seq -f '-A OUTPUT -p udp -m comment --comment %.0f -j ACCEPT' 16000; echo COMMIT; } | iptables-legacy-restore`
	long := strings.Repeat(`log prefix "`+strings.Repeat("x", 120)+`" `, 60) // which nothing prints outside the host's namespace
	for name, c := range map[string]struct{ script, want string }{
		"a byte of an IPv6 address is no protocol":  {chain("ip6", "@nh,72,8 17 notrack"), "takes packets"},
		"nor is it in a table for both families":    {chain("inet", "meta nfproto ipv6 @nh,72,8 17 notrack"), "takes packets"},
		"the protocol of IPv4":                      {chain("ip", "ip protocol udp notrack"), ""},
		"the same in a table for both families":     {chain("inet", "ip protocol udp notrack"), ""},
		"a legacy table that is too large":          {large, "too large"},
		"a rule that is longer than a datagram":     {chain("inet", long+"notrack"), "rule 1 of chain c takes"},
		"such a rule behind others in a long chain": {chain("inet", strings.Repeat("tcp dport 9 counter; ", 90)+long+"notrack"), "rule 91 of chain c takes"},
		"such a rule in the second chain": {
			"nft 'table inet w {\nchain c { type filter hook output priority -320; accept; }\n}'\n" + chain("inet", long+"notrack"), "rule 1 of chain c takes",
		},
	} {
		ns := kerneltest.New(t)
		kerneltest.Shell(t, ns, c.script, "")
		lines, err := Preempting(t.Context(), ns, defaultOurs(t))
		if got := strings.Join(lines, "\n"); err != nil || (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, error %v, want %q", name, got, err, c.want)
		}
	}
}

// The kernel takes a register's latest value, and ends a rule at its first verdict.
func TestARulesExpressionsAreReadAsTheKernelDoes(t *testing.T) {
	expression := func(name string, data ...[]byte) []byte {
		return rawnetlink.Bytes(1, append(rawnetlink.Text(unix.NFTA_EXPR_NAME, name), rawnetlink.Bytes(unix.NFTA_EXPR_DATA, slices.Concat(data...))...))
	}
	number := func(kind uint16, n uint32) []byte {
		return rawnetlink.Bytes(kind, binary.BigEndian.AppendUint32(nil, n))
	}
	data := func(kind uint16, value ...byte) []byte {
		return rawnetlink.Bytes(kind, rawnetlink.Bytes(unix.NFTA_DATA_VALUE, value))
	}
	protocol := expression("meta", number(unix.NFTA_META_KEY, unix.NFT_META_L4PROTO), number(unix.NFTA_META_DREG, 1))
	mark := expression("meta", number(unix.NFTA_META_KEY, unix.NFT_META_MARK), number(unix.NFTA_META_SREG, 1))
	isUDP := expression("cmp", number(unix.NFTA_CMP_SREG, 1), number(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ), data(unix.NFTA_CMP_DATA, unix.IPPROTO_UDP))
	load := func(register uint32, value ...byte) []byte {
		return expression("immediate", number(unix.NFTA_IMMEDIATE_DREG, register), data(exprImmediateData, value...))
	}
	verdict := func(code int32) []byte {
		return expression("immediate", number(unix.NFTA_IMMEDIATE_DREG, verdictRegister),
			rawnetlink.Bytes(exprImmediateData, rawnetlink.Bytes(unix.NFTA_DATA_VERDICT, number(unix.NFTA_VERDICT_CODE, uint32(code))))) //nolint:gosec // negative, as the kernel has it
	}
	random := expression("numgen", number(1, 1))
	notrack := expression("notrack")
	five, ours := binary.NativeEndian.AppendUint32(nil, 5), binary.NativeEndian.AppendUint32(nil, 1337)
	for name, c := range map[string]struct {
		rule [][]byte
		want string
	}{
		"another protocol":                         {[][]byte{protocol, isUDP, notrack}, ""},
		"a constant in the protocol's place":       {[][]byte{protocol, load(1, unix.IPPROTO_UDP), isUDP, notrack}, "takes packets from connection tracking"},
		"any number in the protocol's place":       {[][]byte{protocol, random, isUDP, notrack}, "takes packets from connection tracking"},
		"a constant in an overlapping register":    {[][]byte{protocol, load(8, unix.IPPROTO_UDP), isUDP, notrack}, "takes packets from connection tracking"},
		"a statement in front of the comparison":   {[][]byte{notrack, protocol, isUDP}, "takes packets from connection tracking"},
		"a verdict in front of the comparison":     {[][]byte{verdict(0), protocol, isUDP}, "drops"},
		"a statement behind a verdict":             {[][]byte{verdict(1), notrack}, ""},
		"a statement behind a verdict to continue": {[][]byte{verdict(unix.NFT_CONTINUE), notrack}, "takes packets from connection tracking"},
		"a queue as a verdict":                     {[][]byte{verdict(7<<16 | 3)}, "queues"},
		"another mark":                             {[][]byte{load(1, five...), mark}, ""},
		"our mark":                                 {[][]byte{load(1, ours...), mark}, "sets a mark that our rules match"},
		"a mark that was replaced":                 {[][]byte{load(1, five...), random, mark}, "sets a mark that our rules match"},
	} {
		if got := defaultOurs(t).rule(unix.NFPROTO_INET, slices.Concat(c.rule...), false); got.decides != c.want {
			t.Errorf("%s: %q, want %q", name, got.decides, c.want)
		}
	}
}

// Without its flag the kernel does not look at the protocol of a legacy rule for IPv6.
func TestTheProtocolOfALegacyRule(t *testing.T) {
	for _, f := range legacyFamilies() {
		e := entry{f.layout, make([]byte, f.layout.size)}
		binary.NativeEndian.PutUint16(e.data[f.layout.protocol:], unix.IPPROTO_UDP)
		if got, want := e.protocol(), map[string]uint32{"ip": unix.IPPROTO_UDP}[f.family]; got != want {
			t.Errorf("%s, without a flag: %d, want %d", f.family, got, want)
		}
		if f.layout.protocolFlag > 0 {
			e.data[f.layout.protocolFlag] = 1
		}
		if got := e.protocol(); got != unix.IPPROTO_UDP {
			t.Errorf("%s, with its flag: %d", f.family, got)
		}
	}
}

// What the kernel returns of a rule was written by the pod.
func FuzzRule(f *testing.F) {
	f.Add([]byte("\x10\x00\x01\x00\x0c\x00\x01\x00notrack\x00"))
	f.Add(rawnetlink.Text(1, "immediate"))
	o := defaultOurs(f)
	f.Fuzz(func(_ *testing.T, expressions []byte) {
		o.rule(2, expressions, false)
		o.rule(1, expressions, true)
	})
}

// So was a legacy table.
func FuzzLegacyTable(f *testing.F) {
	for _, family := range legacyFamilies() {
		f.Add(make([]byte, 4*family.layout.size))
	}
	f.Fuzz(func(_ *testing.T, entries []byte) {
		for _, family := range legacyFamilies() {
			t := legacyTable{legacyFamily: family, entries: entries}
			w := walk{search: &search{ours: Ours{}}, legacyTable: t, seen: map[int]bool{}}
			w.chain(0, "x")
		}
	})
}
