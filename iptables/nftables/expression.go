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

// expression is one expression of a rule, as the kernel returns it.
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

// value returns the data inside an attribute (NFTA_DATA_VALUE).
func (e expression) value(kind uint16) []byte {
	return find(find(e.data, kind), unix.NFTA_DATA_VALUE)
}

// only reports whether all attributes are of these kinds.
func (e expression) only(kinds ...uint16) bool {
	for a := range each(e.data) {
		if !slices.Contains(kinds, a.kind) {
			return false
		}
	}
	return true
}

// errUnknown means that an expression is none that our rules use.
var errUnknown = errors.New("unknown")

// in adds to an error which expression it is about.
func (e expression) in(err error) error {
	if err == nil {
		return nil
	}
	const most = 64
	return fmt.Errorf("expression %s %s: %w", printable(e.name), hex.EncodeToString(e.data[:min(len(e.data), most)]), err)
}

// decodeRule is the inverse of encode, for people to read. For a rule that we cannot have written, the comment says so.
func decodeRule(rule []byte) iptables.Rule {
	d := decoder{rule: iptables.Rule{Comment: comment(find(rule, unix.NFTA_RULE_USERDATA)), Uncounted: true}}
	for _, e := range expressions(find(rule, unix.NFTA_RULE_EXPRESSIONS)) {
		if err := d.take(e); err != nil {
			d.rule.Comment = fmt.Sprintf("not ours: %s: %s", e.in(err), d.rule.Comment)
			break
		}
	}
	return d.rule
}

// comment returns what nft shows as a rule's comment: type, length, and text that ends with a zero (libnftnl's udata.h). It
// accepts any bytes, since a pod may have written them.
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

// counter returns a counter's packets and bytes.
func (e expression) counter() iptables.Counter {
	wide := func(kind uint16) uint64 {
		if b := find(e.data, kind); len(b) == 8 {
			return binary.BigEndian.Uint64(b)
		}
		return 0
	}
	return iptables.Counter{Packets: wide(unix.NFTA_COUNTER_PACKETS), Bytes: wide(unix.NFTA_COUNTER_BYTES)}
}
