package nftables

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// attrNames are names for the attributes of tables, chains and sets that may differ.
func attrNames(noun string) map[uint16]string {
	return map[string]map[uint16]string{
		"table": {unix.NFTA_TABLE_FLAGS: "flags", unix.NFTA_TABLE_USE: "chains, sets and objects", tableUserdata: "userdata", tableOwner: "owner"},
		"chain": {
			unix.NFTA_CHAIN_HOOK: "hook and priority", unix.NFTA_CHAIN_POLICY: "policy", unix.NFTA_CHAIN_USE: "rules",
			unix.NFTA_CHAIN_TYPE: "type", unix.NFTA_CHAIN_COUNTERS: "counters", chainFlags: "flags", chainUserdata: "userdata",
		},
		"set": {
			unix.NFTA_SET_FLAGS: "flags", unix.NFTA_SET_KEY_TYPE: "key type", unix.NFTA_SET_KEY_LEN: "key length",
			unix.NFTA_SET_DATA_TYPE: "data type", unix.NFTA_SET_DATA_LEN: "data length", unix.NFTA_SET_TIMEOUT: "timeout",
			unix.NFTA_SET_GC_INTERVAL: "gc interval", unix.NFTA_SET_USERDATA: "userdata",
		},
	}[noun]
}

// attrDifferences returns which attributes of a table, chain or set differ, and how.
func attrDifferences(kind iptables.Kind, noun, name, have, want string) (d iptables.Drift) {
	h, w := byKind(have), byKind(want)
	for attr := range uint16(64) {
		if h[attr] == w[attr] {
			continue
		}
		word := attrNames(noun)[attr]
		if word == "" {
			word = "attribute " + strconv.Itoa(int(attr))
		}
		of := kind
		if noun == "chain" && attr == unix.NFTA_CHAIN_USE {
			of = iptables.KindRules // the number of rules
		}
		text := fmt.Sprintf("+ %s %s: %s: %s, want %s", noun, name, word, shown(h[attr]), shown(w[attr]))
		d = append(d, iptables.Difference{Kind: of, Text: text})
	}
	return d
}

// byKind joins the data of all attributes of each kind.
func byKind(attrs string) map[uint16]string {
	out := map[uint16]string{}
	for kind, data := range rawnetlink.Each([]byte(attrs)) {
		out[kind] += string(data)
	}
	return out
}

// shown returns an attribute as people can read it: a number, a name, or bytes in hexadecimal.
func shown(data string) string {
	const most = 64
	name := strings.TrimSuffix(data, "\x00")
	switch {
	case data == "":
		return "none"
	case len(data) == 4 && printable(name) != name:
		return strconv.FormatUint(uint64(rawnetlink.BigEndian([]byte(data))), 10)
	case printable(name) == name:
		return name
	case len(data) > most:
		return hex.EncodeToString([]byte(data[:most])) + "..."
	}
	return hex.EncodeToString([]byte(data))
}

// printable returns a name that a pod may have chosen, quoted unless it is one plain word.
func printable(name string) string {
	plain := name != "" && strings.IndexFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) < 0
	if plain {
		return name
	}
	return strconv.Quote(name)
}
