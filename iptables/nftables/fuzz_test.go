package nftables

import (
	"encoding/binary"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// Nothing that the kernel hands on from a pod may panic a reader, nor keep it for ever.

// seeds are attributes that a pod can write, and broken ones that it cannot.
func seeds(f *testing.F) {
	f.Helper()
	for _, userdata := range [][]byte{{0, 255}, {1, 255}, {7, 255}, {0}, {0, 0}, []byte("\x00\x05x\n:\ny")} {
		f.Add(forgedRule("outbound", userdata).attrs)
		f.Add(forgedSet("exclude-inbound-ports.0", 13, 1, userdata).attrs)
		f.Add(forgedElements("exclude-inbound-ports.0", userdata, []byte{9}, nil, make([]byte, 64)).attrs)
	}
	for _, name := range []string{"meta", "ct", "payload", "fib", "socket", "bitwise", "cmp", "lookup", "counter", "immediate", "redir", "tproxy", "x"} {
		e := add(named(nil, unix.NFTA_EXPR_NAME, name), unix.NFTA_EXPR_DATA, []byte{5, 0, 1, 0, 1, 0, 0, 0})
		f.Add(add(nil, unix.NFTA_RULE_EXPRESSIONS, add(nil, unix.NFTA_LIST_ELEM, e)))
	}
	f.Add(binary.BigEndian.AppendUint32(nil, 1))
	f.Add([]byte{3, 0, 1, 0})
	f.Add([]byte{255, 255, 1, 0, 1})
}

func FuzzRule(f *testing.F) {
	seeds(f)
	f.Fuzz(func(_ *testing.T, b []byte) {
		r := decodeRule(b)
		all := iptables.Ruleset{Chains: []iptables.Chain{{Rules: []iptables.Rule{r}}}}
		_ = all.NftText(iptables.TextOptions{Counters: true})
		_ = all.Lines()
		_ = canonicalRule(b, ".0")
	})
}

func FuzzExpression(f *testing.F) {
	for _, name := range []string{"meta", "ct", "payload", "fib", "bitwise", "cmp", "lookup", "counter", "immediate", "redir", "tproxy", "x"} {
		f.Add(name, []byte{8, 0, 1, 0, 0, 0, 0, 1, 8, 0, 2, 0, 0, 0, 0, 1, 8, 0, 3, 0, 0, 0, 0, 1}, []byte{1}, []byte{1, 2, 3, 4})
	}
	f.Fuzz(func(_ *testing.T, name string, data, mask, number []byte) {
		for field := range iptables.Socket + 2 {
			d := decoder{host: rawnetlink.Host(), field: field, mask: mask, number: number}
			_ = d.take(expression{name: name, data: data})
			_ = d.rule.Text()
		}
	})
}

func FuzzUserdata(f *testing.F) {
	for _, b := range [][]byte{{0, 255}, {1, 255}, {7, 255}, {1, 0, 0, 2, 'x', 0}, nil} {
		f.Add(b)
	}
	f.Fuzz(func(_ *testing.T, b []byte) { _ = comment(b) })
}

func FuzzElements(f *testing.F) {
	f.Add([]byte{10, 0, 0, 0, 10, 0, 0, 1, 0, 0, 0, 0}, uint8(1), 4)
	f.Fuzz(func(_ *testing.T, b []byte, ends uint8, size int) {
		all := slices.Collect(slices.Chunk(b, max(1, min(size, 17))))
		n := min(int(ends), len(all))
		for kind := range iptables.RangeSet + 1 {
			showElements(&iptables.Set{Kind: kind}, all[n:], all[:n])
		}
	})
}

func FuzzTableAndChain(f *testing.F) {
	seeds(f)
	f.Fuzz(func(_ *testing.T, b []byte) {
		attrs := without(b, unix.NFTA_TABLE_NAME)
		_ = decodeChain("outbound", attrs)
		o := outline{table: attrs, chains: map[string]string{"outbound": attrs}, sets: map[string]string{string(b): attrs}}
		_ = o.differences(outline{table: "x", chains: map[string]string{"outbound": "x"}})
		_ = o.shapedLike(outline{table: "x"})
		_ = nextSuffix(o.sets)
	})
}
