package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// sizeofNfgenmsg is the size of the header in front of the attributes (struct nfgenmsg).
const sizeofNfgenmsg = 4

// dumpedRule is a rule as the kernel tells of it. The library's own listing leaves expressions out that it does not know
// (tproxy among them) without a word, so that a rule would be taken for another one.
type dumpedRule struct {
	chain   string
	comment string
	exprs   []expr.Any
	unknown string // the name of an expression that none of our rules has
}

// dumpRules lists the rules of our table, chain by chain in their order, in one request (nf_tables.h: NFT_MSG_GETRULE).
func dumpRules(ns *netns.NS) ([]dumpedRule, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.Fd()})
	if err != nil {
		return nil, fmt.Errorf("open nftables socket: %w", err)
	}
	defer conn.Close()
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_RULE_TABLE, Data: []byte(iptables.TableName + "\x00")}})
	if err != nil {
		return nil, err
	}
	messages, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, attrs...),
	})
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	out := make([]dumpedRule, len(messages))
	for i, m := range messages {
		if err := out[i].decode(m.Data); err != nil {
			return nil, fmt.Errorf("list rules: decode the kernel's answer: %w", err)
		}
	}
	return out, nil
}

func (r *dumpedRule) decode(message []byte) error {
	if len(message) < sizeofNfgenmsg {
		return errors.New("it is too short")
	}
	ad, err := netlink.NewAttributeDecoder(message[sizeofNfgenmsg:])
	if err != nil {
		return err
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_RULE_CHAIN:
			r.chain = ad.String()
		case unix.NFTA_RULE_USERDATA:
			r.comment, _ = userdata.GetString(ad.Bytes(), userdata.TypeComment)
		case unix.NFTA_RULE_EXPRESSIONS:
			ad.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					list.Nested(r.decodeExpr)
				}
				return list.Err()
			})
		}
	}
	return ad.Err()
}

func (r *dumpedRule) decodeExpr(ad *netlink.AttributeDecoder) error {
	var name string
	var data []byte
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_EXPR_NAME:
			name = ad.String()
		case unix.NFTA_EXPR_DATA:
			data = ad.Bytes()
		}
	}
	if err := ad.Err(); err != nil {
		return err
	}
	if name == "tproxy" {
		e, err := decodeTProxy(data)
		r.exprs = append(r.exprs, e)
		return err
	}
	e := map[string]expr.Any{
		"meta": &expr.Meta{}, "ct": &expr.Ct{}, "payload": &expr.Payload{}, "bitwise": &expr.Bitwise{}, "cmp": &expr.Cmp{},
		"lookup": &expr.Lookup{}, "counter": &expr.Counter{}, "immediate": &expr.Immediate{}, "redir": &expr.Redir{},
		"fib": &expr.Fib{},
	}[name]
	if e == nil {
		r.unknown = name
		return nil
	}
	err := expr.Unmarshal(unix.NFPROTO_INET, data, e)
	// A verdict is an immediate value that goes to no register of data.
	if value, ok := e.(*expr.Immediate); ok && err == nil && value.Register == unix.NFT_REG_VERDICT {
		e = &expr.Verdict{}
		err = expr.Unmarshal(unix.NFPROTO_INET, data, e)
	}
	r.exprs = append(r.exprs, e)
	return err
}

// decodeTProxy reads what the library writes but cannot read: it takes the family for one byte, where the kernel has four.
func decodeTProxy(data []byte) (*expr.TProxy, error) {
	e := &expr.TProxy{}
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return e, err
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		switch ad.Type() {
		case expr.NFTA_TPROXY_FAMILY:
			e.Family = byte(ad.Uint32()) //nolint:gosec // NFPROTO numbers are small
		case expr.NFTA_TPROXY_REG_PORT:
			e.RegPort = ad.Uint32()
		case expr.NFTA_TPROXY_REG_ADDR:
			e.RegAddr = ad.Uint32()
		}
	}
	return e, ad.Err()
}
