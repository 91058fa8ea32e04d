package foreign

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// undoing returns foreign tables with rules that take packets away from the proxy again, behind our rules: one line each. tables are their families
// by their names with the family. All rules of the tables count, since a chain behind ours may jump to any chain of its table. Tables with more rules
// than are read are reported, and so are too many tables.
func (o Ours) undoing(n native, tables map[string]byte) (lines []string, err error) {
	if len(tables) > maxBehind {
		return []string{fmt.Sprintf("nftables has more tables behind our rules than are read (%d)", maxBehind)}, nil
	}
	left := maxRules
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		_, name, _ := strings.Cut(table, " ")
		line, own := "", o.chainsIn(table)
		err := n.rules(tables[table], name, "", func(rule nftRule) bool {
			left--
			switch {
			case left < 0:
				line = fmt.Sprintf("nftables, table %s has more rules behind ours than are read (%d)", table, maxRules)
			case !slices.Contains(own, rule.chain) && undoes(tables[table], rule.expressions):
				line = fmt.Sprintf("nftables, table %s, chain %s sends packets elsewhere behind our rules", table, rule.chain)
			}
			return line == ""
		})
		if err != nil {
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
	offset := uint32(0)
	for entry := range t.each(t.entries) {
		offset += uint32(len(entry))
		if name, begins := r.names[offset]; begins {
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

// rewrites reports whether a payload expression that writes changes more than the begin of the network header.
func rewrites(payload map[uint16][]byte) bool {
	end := uint64(number(payload[unix.NFTA_PAYLOAD_OFFSET])) + uint64(number(payload[unix.NFTA_PAYLOAD_LEN]))
	return number(payload[unix.NFTA_PAYLOAD_BASE]) != unix.NFT_PAYLOAD_NETWORK_HEADER || end > harmless
}
