package xtables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// refused is a rule set that the kernel takes for IPv4 and refuses for IPv6: TPROXY has no place in the output hook.
func refused(t *testing.T) iptables.Ruleset {
	t.Helper()
	r := rules(t, tproxyAndDNS)
	for i, c := range r.Chains {
		if c.Name == "outbound-mark-lo" { // the last one of its table: the kernel may blame rules behind the one it means
			r.Chains[i].Rules = slices.Concat(c.Rules, []iptables.Rule{{
				Conds:   []iptables.Cond{{Field: iptables.Family, Num: iptables.IPv6}, {Field: iptables.Protocol, Num: iptables.TCP}},
				Action:  iptables.Action{Verb: iptables.TProxy, Port: 1, Num: 1},
				Comment: "out of place",
			}})
		}
	}
	return r
}

// A refusal names what was refused. Whatever it has left half-way, the next change comes about.
func TestApply_refused_isNamedAndFinishedLater(t *testing.T) {
	for _, flavour := range flavours() {
		for name, programmed := range map[string]bool{"in a fresh namespace": false, "in a programmed one": true} {
			t.Run(name+"/"+string(flavour), func(t *testing.T) {
				ns, b := kerneltest.New(t), newBackend(t, flavour)
				if programmed {
					mustApply(t, b, ns, rules(t, nil))
				}
				out, err := b.Apply(t.Context(), ns.Path(), refused(t))
				want := map[Flavour]string{NFT: `-A PODNET_OUTBOUND_MARK_LO -p tcp -m comment --comment "out of place" -j TPROXY`, Legacy: "refused in table mangle"}
				if out.Changed() || err == nil || !strings.Contains(err.Error(), want[flavour]) || !strings.Contains(err.Error(), "ip6tables-") {
					t.Errorf("changed %q, error %v", out.Drift, err)
				}
				for _, next := range []func(*iptables.Spec){tproxyAndDNS, nil} {
					mustApply(t, b, ns, rules(t, next))
					mustHold(t, b, ns, rules(t, next))
				}
			})
		}
	}
}

// script makes a program.
func script(t *testing.T, dir, name, text string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

// When the caller's time is up, the program ends. The next Apply finishes what it has left.
func TestApply_programHangs_isEndedAndFinishedLater(t *testing.T) {
	ns, b := kerneltest.New(t), newBackend(t, NFT)
	mustApply(t, b, ns, rules(t, nil))
	whole := b.own.programs.tools[iptables.IPv6]
	v6 := whole
	v6.restore = script(t, t.TempDir(), "hanging-restore", "exec sleep 60")
	b.own.programs.tools[iptables.IPv6] = v6
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) // for the reading before the write
	defer cancel()
	start := time.Now()
	_, err := b.own.Apply(ctx, ns, rules(t, tproxyAndDNS))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "hanging-restore") || time.Since(start) > 20*time.Second {
		t.Errorf("after %s: %v", time.Since(start), err)
	}
	b.own.programs.tools[iptables.IPv6] = whole
	mustApply(t, b, ns, rules(t, tproxyAndDNS))
	mustHold(t, b, ns, rules(t, tproxyAndDNS))
}

// Only a namespace that the programs cannot read or change goes to another backend. A pod can make them crash, but cannot kill them.
func TestProgramFails_namespaceIsUnusableUnlessItPasses(t *testing.T) {
	const enomem = "CHAIN_ADD failed (Cannot allocate memory): chain PODNET_OUTBOUND"
	for name, c := range map[string]struct {
		script     string
		onlyWrites bool
		unusable   bool
	}{
		"refused":                        {"echo 'line 3: RULE_APPEND failed (Invalid argument)' >&2; exit 4", false, true},
		"crashed":                        {"kill -SEGV $$", false, true},
		"killed, as by a lack of memory": {"kill -KILL $$", false, false},
		"not started":                    {"", false, false},
		"the lock is held":               {"echo 'Another app is currently holding the xtables lock; still 0s' >&2; exit 4", true, false},
		"the kernel lacks memory":        {"echo 'line 4: " + enomem + "' >&2; exit 4", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			ns, b := kerneltest.New(t), newBackend(t, NFT)
			shell(t, ns, "iptables-nft -t nat -A OUTPUT -j ACCEPT") // without a table nothing is read
			program := "/nowhere/restore"
			if c.script != "" {
				program = script(t, t.TempDir(), "failing", c.script)
			}
			ways := []func(*tools){func(t *tools) { t.save = program }, func(t *tools) { t.restore = program }}
			if c.onlyWrites {
				ways = ways[1:]
			}
			for i, replace := range ways {
				whole := b.own.programs.tools[iptables.IPv4]
				broken := whole
				replace(&broken)
				b.own.programs.tools[iptables.IPv4] = broken
				_, err := b.Apply(t.Context(), ns.Path(), rules(t, nil))
				b.own.programs.tools[iptables.IPv4] = whole
				if err == nil || errors.Is(err, ErrUnusable) != c.unusable {
					t.Errorf("way %d: want unusable %v: %v", i, c.unusable, err)
				}
			}
		})
	}
}

// What one family's programs show is there, whatever a pod has done to the other family's tables.
func TestOneFamilyIsUnreadable_otherIsSeenAndRemoved(t *testing.T) {
	ns, b := kerneltest.New(t), newBackend(t, Legacy)
	mustApply(t, b, ns, rules(t, nil))
	broken := b.own.programs.tools[iptables.IPv6]
	broken.save = script(t, t.TempDir(), "failing", "exit 1")
	b.own.programs.tools[iptables.IPv6] = broken
	if present, err := b.Present(t.Context(), ns.Path()); err != nil || !present {
		t.Errorf("present %v, error %v", present, err)
	}
	if removed, err := b.Remove(t.Context(), ns.Path()); err != nil || !removed {
		t.Errorf("removed %v, error %v", removed, err)
	}
	if left := shell(t, ns, "iptables-legacy-save"); strings.Contains(left, "PODNET_") {
		t.Error(left)
	}
}

func TestRefusal_namesRuleAndTable(t *testing.T) {
	input := "*nat\n:PODNET_X - [0:0]\n-A PODNET_X -j WRONG\nCOMMIT\n"
	for stderr, want := range map[string]string{
		"# Warning: a\n# Warning: b\niptables-restore v1: \nline 3: RULE_APPEND failed (Invalid argument): rule in chain PODNET_X\n": "RULE_APPEND failed " +
			"(Invalid argument): rule in chain PODNET_X; refused in table nat: -A PODNET_X -j WRONG",
		"iptables-restore: line 4 failed\n": "refused in table nat: COMMIT",
		"Couldn't load target `WRONG'\n\nError occurred at line: 3\nTry `iptables-restore -h' for more": "Couldn't load target `WRONG'; Error occurred at line: 3; refused in table nat: -A PODNET_X -j WRONG",
		"Another app is currently holding the xtables lock\n":                                           ": Another app is currently holding the xtables lock",
		"line 99 failed\n": ": line 99 failed",
		"":                 ": ",
	} {
		if got := refusal(stderr, input); !strings.HasSuffix(got, want) {
			t.Errorf("%q became %q, want %q", stderr, got, want)
		}
	}
}

// Rules that iptables cannot show us would be added again and again.
func TestATableThatIptablesCannotReadIsAnError(t *testing.T) {
	ns, b := kerneltest.New(t), newBackend(t, NFT)
	shell(t, ns, `nft add table ip nat; nft add set ip nat s '{ type ipv4_addr; }'
nft add chain ip nat OUTPUT '{ type nat hook output priority -100; }'; nft add rule ip nat OUTPUT ip daddr @s counter dnat to 192.0.2.1`)
	_, err := b.Apply(t.Context(), ns.Path(), rules(t, nil))
	if err == nil || !strings.Contains(err.Error(), "cannot read table nat") || !errors.Is(err, ErrUnusable) {
		t.Error(err)
	}
	if out := shell(t, ns, "nft list ruleset"); strings.Contains(out, iptables.ChainPrefix) {
		t.Error(out)
	}
}

func TestApply_hostUsersFalse_isRefused(t *testing.T) {
	kerneltest.New(t) // as root, or not at all
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, UidMappings: ids, GidMappings: ids}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ns, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	for _, flavour := range flavours() {
		_, err := newBackend(t, flavour).Apply(t.Context(), ns.Path(), rules(t, nil))
		if !errors.Is(err, ErrUserNamespace) || !strings.Contains(err.Error(), "nftables backend") {
			t.Errorf("%s: %v", flavour, err)
		}
	}
	if out := shell(t, ns, "nft list ruleset; cat /proc/self/net/ip_tables_names"); out != "" {
		t.Errorf("left behind: %s", out)
	}
}

func TestNoDescriptorIsLeftBehind(t *testing.T) {
	ns, b := kerneltest.New(t), newBackend(t, NFT)
	mustApply(t, b, ns, rules(t, nil))
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := count()
	for range 5 {
		mustApply(t, b, ns, rules(t, tproxyAndDNS))
		mustApply(t, b, ns, rules(t, nil))
		if _, err := b.Apply(t.Context(), ns.Path(), refused(t)); err == nil {
			t.Fatal("accepted")
		}
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
