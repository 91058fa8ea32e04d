package kernel

import (
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/test/kerneltest"
)

// Foreign rules before ours, however many, cost a check little: the kernel counts those of nf_tables, tables of x_tables are read whole, and no
// process is started for either.
func TestApply_manyForeignRules_costsLittle(t *testing.T) {
	const many = 20_000
	rulesOf := func(line string) string { return strings.Repeat(line+"\n", many) }
	for name, c := range map[string]struct {
		program, input string
		most           uint64 // bytes that a check may allocate
	}{
		"nftables":                 {"nft -f -", "add table inet x\nadd chain inet x c { type filter hook output priority -310; }\n" + rulesOf("add rule inet x c tcp dport 9 counter"), 1 << 20},
		"nftables, in a nat chain": {"nft -f -", "add table ip nat\nadd chain ip nat OUTPUT { type nat hook output priority -150; }\n" + rulesOf("add rule ip nat OUTPUT tcp dport 9 counter"), 1 << 20},
		"iptables nft":             {"iptables-nft-restore --noflush", "*mangle\n" + rulesOf("-A OUTPUT -p tcp --dport 9 -j ACCEPT") + "COMMIT\n", 1 << 20},
		"iptables legacy":          {"iptables-legacy-restore --noflush", "*mangle\n" + rulesOf("-A OUTPUT -p tcp --dport 9 -j ACCEPT") + "COMMIT\n", 16 << 20},
	} {
		processes := 0
		choice, err := NewChoice(func(string, time.Duration) { processes++ }, nil)
		if err != nil {
			t.Fatal(err)
		}
		ns, e, want := kerneltest.New(t), choice.Nftables(t.Context()), tproxyRules(t)
		place := at(ns)
		place.Identity = idOf(t, e, ns.Path())
		kerneltest.Shell(t, ns, c.program, c.input)
		for range 2 {
			out, err := e.Apply(t.Context(), place, want)
			if err != nil || len(out.Preempted) == 0 {
				t.Fatalf("%s: preempted %q, error %v", name, out.Preempted, err)
			}
		}
		var before, after goruntime.MemStats
		goruntime.ReadMemStats(&before)
		const checks = 5
		for range checks {
			if _, err := e.Apply(t.Context(), place, want); err != nil {
				t.Fatal(err)
			}
		}
		goruntime.ReadMemStats(&after)
		if used := (after.TotalAlloc - before.TotalAlloc) / checks; used > c.most || processes > 0 {
			t.Errorf("%s: a check allocates %d bytes; %d processes were started", name, used, processes)
		}
	}
}
