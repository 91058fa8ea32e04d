package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/foreign"
)

// hints names what in a namespace keeps redirected connections from their proxy although the rules are in force. What cannot be read is left out.
func hints(ctx context.Context, ns *netns.NS, want iptables.Ruleset) (out []string) {
	to := proxyPorts(want)
	if len(to) == 0 {
		return nil
	}
	taken, err := takenPorts(ns, to)
	if err == nil && len(taken) > 0 {
		out = append(out, fmt.Sprintf("net.ipv4.ip_local_port_range of the pod contains the proxy's %s: a connection of the application can take a port before the proxy listens; reserve them (net.ipv4.ip_local_reserved_ports)", ports(taken)))
	}
	for _, narrow := range narrowListeners(ctx, ns, to) {
		out = append(out, fmt.Sprintf("the proxy listens on %s and not on all addresses: connections that are redirected to another address of the pod are refused", narrow))
	}
	for _, chain := range foreign.Dropping(ctx, ns) {
		out = append(out, chain+" drops by its policy: it has to accept what is redirected, to 127.0.0.1 and ::1 by lo, and to the proxy's inbound port")
	}
	return out
}

// proxyPorts returns the ports to which rules lead.
func proxyPorts(want iptables.Ruleset) (to []uint16) {
	for _, c := range want.Chains {
		for _, r := range c.Rules {
			if v := r.Action.Verb; (v == iptables.Redirect || v == iptables.TProxy) && r.Action.Port > 1 { // nobody listens on 1: what leads there is refused
				to = append(to, r.Action.Port)
			}
		}
	}
	slices.Sort(to)
	return slices.Compact(to)
}

func ports(all []uint16) string {
	words := make([]string, len(all))
	for i, port := range all {
		words[i] = strconv.Itoa(int(port))
	}
	return "ports " + strings.Join(words, ", ")
}

// takenPorts returns the ports that the kernel may give to connections of the pod.
func takenPorts(ns *netns.NS, to []uint16) (taken []uint16, err error) {
	err = ns.Inside(func() error {
		limits, errLimits := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
		reserved, errReserved := os.ReadFile("/proc/sys/net/ipv4/ip_local_reserved_ports")
		if err := errors.Join(errLimits, errReserved); err != nil {
			return err
		}
		var first, last uint16
		if _, err := fmt.Sscan(string(limits), &first, &last); err != nil {
			return fmt.Errorf("read net.ipv4.ip_local_port_range: %w", err)
		}
		for _, port := range to {
			if port >= first && port <= last && !isReserved(string(reserved), port) {
				taken = append(taken, port)
			}
		}
		return nil
	})
	return taken, err
}

// isReserved looks a port up in a list such as "15001,15006-15010".
func isReserved(list string, port uint16) bool {
	return slices.ContainsFunc(strings.Split(strings.TrimSpace(list), ","), func(item string) bool {
		from, to, isRange := strings.Cut(item, "-")
		first, errFirst := strconv.Atoi(from)
		if !isRange {
			to = from
		}
		last, errLast := strconv.Atoi(to)
		return errFirst == nil && errLast == nil && first <= int(port) && int(port) <= last
	})
}

// narrowListeners returns the addresses and ports at which the ports are listened to, if nobody listens at all addresses, and somebody at a single
// address of the pod.
func narrowListeners(ctx context.Context, ns *netns.NS, to []uint16) (narrow []string) {
	wide := map[uint16]bool{}
	found := map[uint16]string{}
	left := maxListeners
	err := EachListener(ctx, ns, func(s Socket) (more bool) {
		if slices.Contains(to, s.Port) {
			if s.Address.IsUnspecified() {
				wide[s.Port] = true
			} else if !s.Loopback {
				found[s.Port] = fmt.Sprintf("%s port %d", s.Address, s.Port)
			}
		}
		left--
		return left > 0
	})
	if err != nil || left == 0 {
		return nil
	}
	for _, port := range to {
		if at := found[port]; at != "" && !wide[port] {
			narrow = append(narrow, at)
		}
	}
	return narrow
}
