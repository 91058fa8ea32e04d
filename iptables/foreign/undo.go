package foreign

import (
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
			case !slices.Contains(own, chain) && undoes(tables[table], rule[unix.NFTA_RULE_EXPRESSIONS]):
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

// undoes reports whether a rule gives packets another address, port, socket or device, whatever it matches.
func undoes(family byte, expressions []byte) bool {
	return readRule(packets{all: true}, family, expressions).effects&undoing != 0
}

// undoes reports whether a rule of the table, in any chain but some, gives packets to somebody else.
func (t legacyTable) undoes(but []string) bool {
	r, chain := t.rulesOf(packets{all: true}, nil), ""
	for behind, entry := range t.each(0) {
		if name, begins := r.names[behind]; begins {
			chain = name
			continue
		}
		if !slices.Contains(but, chain) && r.rule(entry).effects&undoing != 0 {
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
