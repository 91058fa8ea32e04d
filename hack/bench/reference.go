package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	goiptables "github.com/coreos/go-iptables/iptables"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// The reference: the same rules by the programs that other projects start, for IPv4 and for IPv6.

// restore gives each family its rules in one run of its restore program.
func restore(ctx context.Context, ns *netns.NS, rules iptables.Ruleset) error {
	for family, program := range map[uint32]string{iptables.IPv4: "iptables-restore", iptables.IPv6: "ip6tables-restore"} {
		var text strings.Builder
		text.WriteString("*nat\n:BENCH_OUTPUT - [0:0]\n:BENCH_PREROUTING - [0:0]\n-A OUTPUT -j BENCH_OUTPUT\n-A PREROUTING -j BENCH_PREROUTING\n")
		for _, r := range flat(rules, family) {
			text.WriteString("-A " + r.chain + " " + strings.Join(r.args, " ") + "\n")
		}
		text.WriteString("COMMIT\n")
		err := ns.Do(func() error {
			cmd := exec.CommandContext(ctx, program, "--noflush")
			cmd.Stdin = strings.NewReader(text.String())
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", program, err, out)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// oneByOne has go-iptables append rule by rule, as init containers of the field do.
func oneByOne(ns *netns.NS, rules iptables.Ruleset) error {
	for family, protocol := range map[uint32]goiptables.Protocol{iptables.IPv4: goiptables.ProtocolIPv4, iptables.IPv6: goiptables.ProtocolIPv6} {
		if err := ns.Do(func() error { return appendAll(protocol, flat(rules, family)) }); err != nil {
			return err
		}
	}
	return nil
}

func appendAll(protocol goiptables.Protocol, rules []flatRule) error {
	t, err := goiptables.New(goiptables.IPFamily(protocol))
	if err != nil {
		return err
	}
	for hook, chain := range map[string]string{"OUTPUT": "BENCH_OUTPUT", "PREROUTING": "BENCH_PREROUTING"} {
		if err := errors.Join(t.NewChain("nat", chain), t.Append("nat", hook, "-j", chain)); err != nil {
			return err
		}
	}
	for _, r := range rules {
		if err := t.Append("nat", r.chain, r.args...); err != nil {
			return err
		}
	}
	return nil
}

type flatRule struct {
	chain string
	args  []string
}

// flat writes the rules that concern a family as arguments of iptables.
func flat(rules iptables.Ruleset, family uint32) []flatRule {
	ports := map[string]string{}
	for _, s := range rules.Sets {
		var list []string
		for _, p := range s.Ports {
			list = append(list, strconv.Itoa(int(p)))
		}
		ports[s.Name] = strings.Join(list, ",")
	}
	var out []flatRule
	for _, c := range rules.Chains {
		chain := "BENCH_" + strings.ToUpper(string(c.Hook))
		for _, r := range c.Rules {
			args, ok := arguments(r.Conds, family, ports)
			if !ok {
				continue
			}
			if r.Action.Verb == iptables.Redirect {
				args = append(args, "-j", "REDIRECT", "--to-ports", strconv.Itoa(int(r.Action.Port)))
			} else {
				args = append(args, "-j", "RETURN")
			}
			out = append(out, flatRule{chain, args})
		}
	}
	return out
}

// arguments gives the conditions of a rule; ok is false for a rule of the other family.
func arguments(conds []iptables.Cond, family uint32, ports map[string]string) (args []string, ok bool) {
	var tail []string // matches that want the protocol before them
	for _, c := range conds {
		not := func(flag ...string) []string {
			if c.Not {
				return append([]string{"!"}, flag...)
			}
			return flag
		}
		number := strconv.FormatUint(uint64(c.Num), 10)
		switch {
		case c.Field == iptables.Family && c.Num != family:
			return nil, false
		case c.Field == iptables.Protocol:
			args = append(args, not("-p", number)...)
		case c.Field == iptables.OutIface:
			args = append(args, not("-o", c.Text)...)
		case c.Field == iptables.SrcAddr:
			args = append(args, not("-s", c.Prefix.String())...)
		case c.Field == iptables.DstAddr:
			args = append(args, not("-d", c.Prefix.String())...)
		case c.Field == iptables.DstPort && c.Set != "":
			tail = append(tail, append([]string{"-m", "multiport"}, not("--dports", ports[c.Set])...)...)
		case c.Field == iptables.DstPort:
			tail = append(tail, not("--dport", number)...)
		case c.Field == iptables.OwnerUID:
			tail = append(tail, append([]string{"-m", "owner"}, not("--uid-owner", number)...)...)
		case c.Field == iptables.OwnerGID:
			tail = append(tail, append([]string{"-m", "owner"}, not("--gid-owner", number)...)...)
		}
	}
	return append(args, tail...), true
}
