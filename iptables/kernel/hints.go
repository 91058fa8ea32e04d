package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// maxFiltersRead bounds the chains that are read for hints.
const maxFiltersRead = 4096

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
	for _, chain := range droppingFilters(ctx, ns) {
		out = append(out, fmt.Sprintf("nftables, %s drops by its policy: it has to accept what is redirected, to 127.0.0.1 and ::1 by lo, and to the proxy's inbound port", iptables.Printable(chain)))
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

// droppingFilters returns the base chains of others at the hooks of the pod's own packets that drop what no rule accepts. Those of iptables-legacy are
// not looked at: reading a table of theirs would make it.
func droppingFilters(ctx context.Context, ns *netns.NS) (chains []string) {
	const input, output = 1, 3 // NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT
	families := map[byte]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet"}
	end, ok := ctx.Deadline()
	if !ok {
		end = time.Now().Add(time.Second)
	}
	conn, err := ns.Netlink(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil
	}
	read := 0
	err = conn.Dump(end, rawnetlink.Nftables(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_UNSPEC), func(body []byte) bool {
		read++
		if len(body) < rawnetlink.SizeofNfgenmsg || families[body[0]] == "" {
			return read < maxFiltersRead
		}
		a := rawnetlink.Attributes(rawnetlink.Object(body))
		hook := rawnetlink.BigEndian(rawnetlink.Attributes(a[unix.NFTA_CHAIN_HOOK])[unix.NFTA_HOOK_HOOKNUM])
		drops := len(a[unix.NFTA_CHAIN_POLICY]) == 4 && rawnetlink.BigEndian(a[unix.NFTA_CHAIN_POLICY]) == 0
		if len(a[unix.NFTA_CHAIN_HOOK]) > 0 && drops && (hook == input || hook == output) && len(chains) < 4 {
			chains = append(chains, fmt.Sprintf("table %s %s, chain %s", families[body[0]], rawnetlink.Name(a[unix.NFTA_CHAIN_TABLE]), rawnetlink.Name(a[unix.NFTA_CHAIN_NAME])))
		}
		return read < maxFiltersRead
	})
	if err != nil {
		return nil
	}
	return chains
}
