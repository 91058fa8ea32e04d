package foreign

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/internal/kerneltest"
	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
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

// What the kernel returns of a rule was written by the pod.
func FuzzRule(f *testing.F) {
	f.Add([]byte("\x10\x00\x01\x00\x0c\x00\x01\x00notrack\x00"))
	f.Add(rawnetlink.Text(1, "immediate"))
	o := defaultOurs(f)
	f.Fuzz(func(_ *testing.T, expressions []byte) {
		o.rule(expressions, false)
		o.rule(expressions, true)
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
