package nftables

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/iptables"
)

// expression is one step of a rule as the kernel tells of it.
type expression struct {
	name string
	data []byte // its attributes
}

func expressions(list []byte) (out []expression) {
	for e := range each(list) {
		out = append(out, expression{name: text(find(e.data, unix.NFTA_EXPR_NAME)), data: find(e.data, unix.NFTA_EXPR_DATA)})
	}
	return out
}

func (e expression) number(kind uint16) uint32 { return number(find(e.data, kind)) }

// value is data in an attribute of its own (NFTA_DATA_VALUE).
func (e expression) value(kind uint16) []byte {
	return find(find(e.data, kind), unix.NFTA_DATA_VALUE)
}

// only reports whether there are no attributes but of these kinds.
func (e expression) only(kinds ...uint16) bool {
	for a := range each(e.data) {
		if !slices.Contains(kinds, a.kind) {
			return false
		}
	}
	return true
}

// errUnknown ends the reading of an expression that none of our rules has.
var errUnknown = errors.New("unknown")

// in says which expression an error is about.
func (e expression) in(err error) error {
	if err == nil {
		return nil
	}
	const most = 64
	return fmt.Errorf("expression %s %s: %w", printable(e.name), hex.EncodeToString(e.data[:min(len(e.data), most)]), err)
}

// decodeRule is encode's inverse, for people to read. A rule that nothing of ours can have written says so in its comment.
func decodeRule(rule []byte) iptables.Rule {
	d := decoder{rule: iptables.Rule{Comment: comment(find(rule, unix.NFTA_RULE_USERDATA))}}
	for _, e := range expressions(find(rule, unix.NFTA_RULE_EXPRESSIONS)) {
		if err := d.take(e); err != nil {
			d.rule.Comment = fmt.Sprintf("not ours: %s: %s", e.in(err), d.rule.Comment)
			break
		}
	}
	return d.rule
}

// comment reads what nft shows as a rule's comment: type, length, and text that ends with a zero (libnftnl's udata.h). A
// rule's userdata is any bytes.
func comment(userdata []byte) string {
	const typeComment = 0
	for len(userdata) >= 2 {
		kind, size := userdata[0], int(userdata[1])
		if size > len(userdata)-2 {
			return ""
		}
		if kind == typeComment {
			return text(userdata[2 : 2+size])
		}
		userdata = userdata[2+size:]
	}
	return ""
}

// counter reads what a rule has counted.
func (e expression) counter() iptables.Counter {
	wide := func(kind uint16) uint64 {
		if b := find(e.data, kind); len(b) == 8 {
			return binary.BigEndian.Uint64(b)
		}
		return 0
	}
	return iptables.Counter{Packets: wide(unix.NFTA_COUNTER_PACKETS), Bytes: wide(unix.NFTA_COUNTER_BYTES)}
}
