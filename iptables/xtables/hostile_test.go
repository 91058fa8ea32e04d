package xtables

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// hostile is what a pod may write, with PROGRAM for iptables. N and its like are line breaks inside of a comment.
func hostile() map[string]string {
	comment := func(chain, text string) string {
		return fmt.Sprintf(`PROGRAM -t nat -A %s -p tcp -m comment --comment "$(printf '%s')" -j RETURN`, chain, text)
	}
	return map[string]string{
		"a chain without a name":       comment("OUTPUT", `x\n:\ny`),
		"a rule in a comment":          comment("OUTPUT", `x\n-A OUTPUT -j PODNET_EVIL -m bogus\ny`),
		"a jump of ours in a comment":  comment("OUTPUT", `x\n-A OUTPUT -m comment --comment pod-network-controller -j PODNET_OUTBOUND\ny`),
		"a table in a comment":         comment("OUTPUT", `x\n*nat\n:PODNET_OUTBOUND - [0:0]\nCOMMIT\ny`),
		"quotes in a comment":          comment("OUTPUT", `x" -j PODNET_OUTBOUND "\n-A OUTPUT \\ y`),
		"a comment in a chain of ours": comment("PODNET_OUTBOUND", `x\n-A PODNET_OUTBOUND -j PODNET_EVIL\ny`),
		"a rule in a chain of ours":    "PROGRAM -t nat -N EVIL; PROGRAM -t nat -I PODNET_OUTBOUND 1 -j EVIL; PROGRAM -t nat -A PODNET_INBOUND -j EVIL",
		"a jump from elsewhere":        "PROGRAM -t nat -N OTHER; PROGRAM -t nat -A OTHER -p udp -j PODNET_INBOUND",
		"another jump, and a goto":     "PROGRAM -t nat -A OUTPUT -p udp -j PODNET_OUTBOUND; PROGRAM -t nat -A PREROUTING -g PODNET_INBOUND",
		"a jump between ours":          "PROGRAM -t mangle -I PODNET_OUTBOUND_REUSED 1 -j PODNET_INBOUND_REUSED",
		"a chain that looks like ours": "PROGRAM -t nat -N PODNET_ODD; PROGRAM -t nat -A OUTPUT -g PODNET_ODD",
		"only white space":             comment("OUTPUT", `\n \n\t\n`),
	}
}

// Whatever a pod has written: nothing panics, every change comes about, and what is not ours stays.
func TestApply_hostileRules_areReplaced(t *testing.T) {
	for name, script := range hostile() {
		for _, flavour := range flavours() {
			t.Run(name+"/"+string(flavour), func(t *testing.T) {
				comeAndGo(t, flavour, strings.ReplaceAll(script, "PROGRAM", "iptables-"+string(flavour)))
			})
		}
	}
}

func comeAndGo(t *testing.T, flavour Flavour, hostile string) {
	t.Helper()
	ns, b := kerneltest.New(t), newBackend(t, flavour)
	mustApply(t, b, ns, rules(t, nil))
	shell(t, ns, hostile)
	if _, err := b.Verify(t.Context(), ns.Path(), rules(t, nil)); err != nil {
		t.Error(err)
	}
	for _, change := range []func(*iptables.Spec){tproxyAndDNS, nil, tproxyAndDNS} {
		mustApply(t, b, ns, rules(t, change))
		mustHold(t, b, ns, rules(t, change))
		if mustApply(t, b, ns, rules(t, change)) {
			t.Error("the second apply changed something")
		}
	}
	if _, err := b.Apply(t.Context(), ns.Path(), refused(t)); err == nil {
		t.Error("accepted")
	}
	mustHold(t, b, ns, rules(t, tproxyAndDNS))
	for _, want := range []bool{true, false} {
		if removed, err := b.Remove(t.Context(), ns.Path()); err != nil || removed != want {
			t.Errorf("removed %v, error %v; want %v", removed, err, want)
		}
	}
}

// A pod with more rules than anybody needs costs a bounded time and memory, and an error that says so.
func TestApply_tooManyRules_isAnError(t *testing.T) {
	ns, b := kerneltest.New(t), newBackend(t, NFT)
	shell(t, ns, `awk 'BEGIN {
  text = sprintf("%250s", ""); gsub(/ /, "x", text)
  print "*nat\n:MANY - [0:0]"
  for (i = 0; i < 40000; i++) print "-A MANY -p tcp -m comment --comment " text " -j RETURN"
  print "COMMIT" }' | iptables-nft-restore --noflush`)
	start := time.Now()
	_, err := b.Apply(t.Context(), ns.Path(), rules(t, nil))
	if took := time.Since(start); took > 2*processTimeout || !errors.Is(err, errTooMuch) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after %s: %v", took, err)
	}
}

// What the programs cannot read is taken away over netlink. Foreign rules stay, and a chain of ours that they jump to stays empty.
func TestRemove_unreadableTables_takesOursAway(t *testing.T) {
	const foreign = "ct state new accept"
	for name, c := range map[string]struct {
		script string
		left   []string // our chains
	}{
		"a rule in our chain":                       {script: "nft insert rule ip nat PODNET_OUTBOUND " + foreign},
		"a rule in a built-in chain":                {script: "nft insert rule ip nat OUTPUT " + foreign},
		"a jump of another rule":                    {"nft insert rule ip nat OUTPUT ct state new jump PODNET_OUTBOUND", []string{"PODNET_OUTBOUND"}},
		"our comment on a jump to another chain":    {script: "nft 'add chain ip nat EVIL; insert rule ip nat OUTPUT ct state new jump EVIL comment \"pod-network-controller\"'"},
		"a base chain with the name of one of ours": {script: "nft 'flush chain ip nat OUTPUT; delete chain ip nat PODNET_OUTBOUND; add chain ip nat PODNET_OUTBOUND { type nat hook output priority 7; }'"},
	} {
		t.Run(name, func(t *testing.T) {
			ns, b := kerneltest.New(t), newBackend(t, NFT)
			mustApply(t, b, ns, rules(t, tproxyAndDNS))
			shell(t, ns, c.script)
			if _, err := b.Apply(t.Context(), ns.Path(), rules(t, nil)); !errors.Is(err, ErrUnusable) {
				t.Error(err)
			}
			for _, want := range []bool{true, false} {
				present, errPresent := b.Present(t.Context(), ns.Path())
				removed, err := b.Remove(t.Context(), ns.Path())
				if err := errors.Join(err, errPresent); err != nil || present != want || removed != want {
					t.Errorf("present %v, removed %v, want %v: %v", present, removed, want, err)
				}
			}
			after := shell(t, ns, "nft list ruleset")
			for _, chain := range iptables.RestoreChainNames() {
				if strings.Contains(after, "chain "+chain+" ") != slices.Contains(c.left, chain) {
					t.Errorf("chain %s:\n%s", chain, after)
				}
			}
		})
	}
}

// A rule that goes between a look and the removal has the kernel refuse the transaction, and with it the removal of all other rules.
func TestRemove_jumpGoesMeanwhile_takesRestAway(t *testing.T) {
	ns, b := kerneltest.New(t), newBackend(t, NFT)
	mustApply(t, b, ns, rules(t, tproxyAndDNS))
	all, err := overNetlink(ns)
	if err != nil {
		t.Fatal(err)
	}
	shell(t, ns, "nft flush chain ip nat OUTPUT")
	if err := ns.Inside(func() error { return remove(all) }); err != nil {
		t.Error(err)
	}
	if left := shell(t, ns, "nft list ruleset"); strings.Contains(left, "PODNET_") {
		t.Error(left)
	}
}

// allowed are the lines that a change may consist of: those of what is wanted, and what our own names make.
func allowed(want string) func(line string) bool {
	made := regexp.MustCompile(`^(\*(raw|mangle|nat)|COMMIT|:PODNET_[A-Z_]+ - \[0:0\]|-X PODNET_[A-Z_]+|` +
		`-D (PREROUTING|OUTPUT) -m comment --comment pod-network-controller -j PODNET_[A-Z_]+)$`)
	lines := strings.Split(want, "\n")
	return func(line string) bool { return line == "" || slices.Contains(lines, line) || made.MatchString(line) }
}

func FuzzNoByteOfAPodBecomesALineOfOurs(f *testing.F) {
	f.Add(saved)
	for _, script := range hostile() {
		f.Add(saved + script)
	}
	f.Add("*nat\n:PODNET_OUTBOUND\n:\n-A\n-A OUTPUT\n-I OUTPUT x -j PODNET_OUTBOUND\n[1:2\n[]] \n-A OUTPUT -m comment --comment pod-network-controller -j PODNET_OUTBOUND\n")
	text := rules(f, nil).RestoreText(iptables.IPv4)
	goal, allow := parse(text), allowed(text)
	f.Fuzz(func(t *testing.T, text string) {
		have := parse(text)
		_ = have.listing()
		for line := range strings.SplitSeq(plan(have, goal), "\n") {
			if !allow(line) {
				t.Errorf("of %q came %q", text, line)
			}
		}
	})
}
