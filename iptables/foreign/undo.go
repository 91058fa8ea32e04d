package foreign

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
)

// undoing returns foreign tables with rules that take packets away from the proxy again, behind our rules: one line each. tables are their families
// by their names with the family. All rules of the
// tables count, since a chain behind ours may jump to any chain of its table. Tables with more rules than are read are reported, and so are too
// many tables.
func (o Ours) undoing(conn *rawnetlink.Conn, end time.Time, tables map[string]byte) (lines []string, err error) {
	if len(tables) > maxBehind {
		return []string{fmt.Sprintf("nftables has more tables behind our rules than are read (%d)", maxBehind)}, nil
	}
	left := maxRules
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		_, name, _ := strings.Cut(table, " ")
		request := get(unix.NFT_MSG_GETRULE, family{number: tables[table]}, rawnetlink.Text(unix.NFTA_RULE_TABLE, name))
		line, own := "", o.chainsIn(table)
		err := conn.Dump(end, request, func(body []byte) bool {
			rule := rawnetlink.Attributes(rawnetlink.Object(body))
			chain := rawnetlink.Name(rule[unix.NFTA_RULE_CHAIN])
			left--
			switch {
			case left < 0:
				line = fmt.Sprintf("nftables, table %s has more rules behind ours than are read (%d)", table, maxRules)
			case !slices.Contains(own, chain) && undoes(rule[unix.NFTA_RULE_EXPRESSIONS]):
				line = fmt.Sprintf("nftables, table %s, chain %s sends packets elsewhere behind our rules", table, chain)
			}
			return line == ""
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
		if line != "" {
			lines = append(lines, line)
		}
	}
	return lines, nil
}

// undoes reports whether an expression of a rule gives packets another address, port, socket or device.
func undoes(expressions []byte) bool {
	for _, e := range rawnetlink.Each(expressions) {
		a := rawnetlink.Attributes(e)
		switch rawnetlink.Name(a[unix.NFTA_EXPR_NAME]) {
		case "dup", "fwd", "queue", "tproxy":
			return true
		case "target": // of iptables' nft flavour
			name := rawnetlink.Name(rawnetlink.Attributes(a[unix.NFTA_EXPR_DATA])[unix.NFTA_TARGET_NAME])
			if slices.Contains(undoingTargets(), name) {
				return true
			}
		case "payload":
			if rewrites(rawnetlink.Attributes(a[unix.NFTA_EXPR_DATA])) {
				return true
			}
		}
	}
	return false
}

// undoingTargets returns the targets of iptables that give packets to somebody else.
func undoingTargets() []string { return []string{"NFQUEUE", "TEE", "TPROXY"} }

// undoes reports whether a rule of the table, in any chain but some, gives packets to somebody else.
func (t legacyTable) undoes(but []string) bool {
	chain := ""
	for entry := range t.each(t.entries) {
		target := entry[min(len(entry), int(binary.NativeEndian.Uint16(entry[t.nextOffset-2:]))):]
		if len(target) < standardSize {
			continue
		}
		name, _, _ := strings.Cut(string(target[2:targetHeadSize]), "\x00")
		if name == "ERROR" { // a chain begins
			chain, _, _ = strings.Cut(string(target[targetHeadSize:]), "\x00")
			continue
		}
		queues := name == "" && int32(binary.NativeEndian.Uint32(target[targetHeadSize:])) == legacyQueue
		if !slices.Contains(but, chain) && (queues || slices.Contains(undoingTargets(), name)) {
			return true
		}
	}
	return false
}

// harmless is how many bytes of the network header may be written: DSCP, TTL and hop limit, but not the destination.
const harmless = 10

// rewrites reports whether a payload expression writes to a packet. Only writes to the begin of the network header do not count.
func rewrites(payload map[uint16][]byte) bool {
	end := uint64(rawnetlink.BigEndian(payload[unix.NFTA_PAYLOAD_OFFSET])) + uint64(rawnetlink.BigEndian(payload[unix.NFTA_PAYLOAD_LEN]))
	_, writes := payload[unix.NFTA_PAYLOAD_SREG]
	return writes && (rawnetlink.BigEndian(payload[unix.NFTA_PAYLOAD_BASE]) != unix.NFT_PAYLOAD_NETWORK_HEADER || end > harmless)
}

// familyNames returns the names of the families whose chains count.
func familyNames() map[byte]string {
	return map[byte]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_NETDEV: "netdev"}
}
