package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"

	goiptables "github.com/coreos/go-iptables/iptables"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// The reference: the same rules by the programs that other projects start, for IPv4 and for IPv6.

// restore gives each family its rules in one run of its restore program.
func restore(ctx context.Context, ns *netns.NS, rules iptables.Ruleset) error {
	for family, program := range map[uint32]string{iptables.IPv4: "iptables-restore", iptables.IPv6: "ip6tables-restore"} {
		err := ns.Inside(func() error {
			cmd := exec.CommandContext(ctx, program, "--noflush")
			cmd.Stdin = strings.NewReader(rules.RestoreText(family))
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
		if err := ns.Inside(func() error { return appendAll(protocol, rules.RestoreText(family)) }); err != nil {
			return err
		}
	}
	return nil
}

// appendAll does line by line what a text for iptables-restore asks for.
func appendAll(protocol goiptables.Protocol, text string) error {
	t, err := goiptables.New(goiptables.IPFamily(protocol))
	if err != nil {
		return err
	}
	table := ""
	comment := regexp.MustCompile(`-m comment --comment ("[^"]*"|\S+) `) // those projects write few
	for line := range strings.Lines(text) {
		words := strings.Fields(comment.ReplaceAllString(line, ""))
		switch {
		case strings.HasPrefix(line, "*"):
			table = words[0][1:]
		case strings.HasPrefix(line, ":"):
			err = t.NewChain(table, words[0][1:])
		case words[0] == "-I":
			err = t.Append(table, words[1], words[3:]...)
		case words[0] == "-A":
			err = t.Append(table, words[1], words[2:]...)
		case words[0] != "COMMIT":
			err = errors.New("not understood")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", strings.TrimSpace(line), err)
		}
	}
	return nil
}
