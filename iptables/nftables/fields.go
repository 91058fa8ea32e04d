package nftables

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// reg is the only register that our rules use: each condition loads it, compares it, and no longer needs it.
const reg = 1

// fieldAt is a field of one family, which earlier conditions of the rule have checked. Ports have family 0.
type fieldAt struct {
	field  iptables.Field
	family uint32
}

// payloads are the fields that are in the packet: header, offset and length in bytes.
func payloads() map[fieldAt]expr.Payload {
	network, transport := expr.PayloadBaseNetworkHeader, expr.PayloadBaseTransportHeader
	return map[fieldAt]expr.Payload{
		{iptables.SrcAddr, iptables.IPv4}: {DestRegister: reg, Base: network, Offset: 12, Len: 4},
		{iptables.DstAddr, iptables.IPv4}: {DestRegister: reg, Base: network, Offset: 16, Len: 4},
		{iptables.SrcAddr, iptables.IPv6}: {DestRegister: reg, Base: network, Offset: 8, Len: 16},
		{iptables.DstAddr, iptables.IPv6}: {DestRegister: reg, Base: network, Offset: 24, Len: 16},
		{iptables.SrcPort, 0}:             {DestRegister: reg, Base: transport, Offset: 0, Len: 2},
		{iptables.DstPort, 0}:             {DestRegister: reg, Base: transport, Offset: 2, Len: 2},
		{iptables.TCPFlags, 0}:            {DestRegister: reg, Base: transport, Offset: 13, Len: 1},
	}
}

// metas are the fields that the kernel keeps with the packet.
func metas() map[iptables.Field]expr.MetaKey {
	return map[iptables.Field]expr.MetaKey{
		iptables.Family: expr.MetaKeyNFPROTO, iptables.Protocol: expr.MetaKeyL4PROTO,
		iptables.InIface: expr.MetaKeyIIFNAME, iptables.OutIface: expr.MetaKeyOIFNAME,
		iptables.InIndex: expr.MetaKeyIIF, iptables.OutIndex: expr.MetaKeyOIF,
		iptables.OwnerUID: expr.MetaKeySKUID, iptables.OwnerGID: expr.MetaKeySKGID, iptables.Mark: expr.MetaKeyMARK,
	}
}

// cts are the fields of the packet's connection.
func cts() map[iptables.Field]expr.CtKey {
	return map[iptables.Field]expr.CtKey{
		iptables.ConnMark: expr.CtKeyMARK, iptables.State: expr.CtKeySTATE, iptables.Direction: expr.CtKeyDIRECTION,
		iptables.Status: expr.CtKeySTATUS,
	}
}

// load returns the expression that puts a field into the register.
func load(f iptables.Field, family uint32) expr.Any {
	if key, ok := metas()[f]; ok {
		return &expr.Meta{Key: key, Register: reg}
	}
	if key, ok := cts()[f]; ok {
		return &expr.Ct{Key: key, Register: reg}
	}
	switch f {
	case iptables.SrcType, iptables.DstType:
		return &expr.Fib{Register: reg, FlagSADDR: f == iptables.SrcType, FlagDADDR: f == iptables.DstType, ResultADDRTYPE: true}
	case iptables.ReplySrcPort:
		return &expr.Ct{Key: expr.CtKeyPROTOSRC, Register: reg, Direction: iptables.Reply}
	case iptables.Socket, iptables.Transparent:
		return &expr.Socket{Key: expr.SocketKeyTransparent, Register: reg}
	case iptables.SrcPort, iptables.DstPort, iptables.TCPFlags:
		family = 0
	default:
	}
	p := payloads()[fieldAt{f, family}]
	return &p
}

// fieldOf is the inverse of load. ok is false for a field that load never reads.
func fieldOf(e expression) (field iptables.Field, ok bool) {
	switch e.name {
	case "meta":
		return keyOf(metas(), expr.MetaKey(e.number(unix.NFTA_META_KEY)))
	case "ct":
		if expr.CtKey(e.number(unix.NFTA_CT_KEY)) == expr.CtKeyPROTOSRC && rawnetlink.BigEndian(find(e.data, unix.NFTA_CT_DIRECTION)) == iptables.Reply {
			return iptables.ReplySrcPort, true
		}
		return keyOf(cts(), expr.CtKey(e.number(unix.NFTA_CT_KEY)))
	case "socket":
		return iptables.Socket, true
	case "fib":
		if e.number(fibFlags) == fibSource {
			return iptables.SrcType, true
		}
		return iptables.DstType, true
	}
	at := expr.Payload{
		DestRegister: reg, Base: expr.PayloadBase(e.number(unix.NFTA_PAYLOAD_BASE)), Offset: e.number(unix.NFTA_PAYLOAD_OFFSET),
		Len: e.number(unix.NFTA_PAYLOAD_LEN),
	}
	found, ok := keyOf(payloads(), at)
	return found.field, ok
}

func keyOf[F, K comparable](fields map[F]K, key K) (found F, ok bool) {
	for f, k := range fields {
		if k == key {
			return f, true
		}
	}
	return found, false
}

// The kernel's numbers for fib (nf_tables.h), which golang.org/x/sys/unix does not name.
const (
	fibFlags  = 3
	fibSource = 1 // NFTA_FIB_F_SADDR
)

// value returns the bytes that the register is compared with, in the size and the byte order in which the kernel keeps the field. host is the
// machine's order.
func value(host rawnetlink.Order, c iptables.Cond) []byte {
	switch c.Field {
	case iptables.Family, iptables.Protocol, iptables.TCPFlags, iptables.Direction, iptables.Socket, iptables.Transparent:
		return []byte{byte(c.Num)}
	case iptables.SrcPort, iptables.DstPort, iptables.ReplySrcPort:
		return binary.BigEndian.AppendUint16(nil, uint16(c.Num))
	case iptables.InIface, iptables.OutIface:
		name := make([]byte, unix.IFNAMSIZ)
		copy(name, c.Text)
		return name
	case iptables.SrcAddr, iptables.DstAddr:
		return c.Prefix.Masked().Addr().AsSlice()
	default:
		return host.AppendUint32(nil, c.Num)
	}
}

// mask returns the bits of the field that are compared, or nil for all.
func mask(host rawnetlink.Order, c iptables.Cond) []byte {
	switch {
	case c.Field == iptables.TCPFlags:
		return []byte{iptables.OpeningMask}
	case c.Field.IsBits():
		return host.AppendUint32(nil, c.Num)
	case c.Prefix.IsValid() && !c.Prefix.IsSingleIP():
		return net.CIDRMask(c.Prefix.Bits(), c.Prefix.Addr().BitLen())
	}
	return nil
}

// setValue is the inverse of value and mask: it puts what the register is compared with into c. ok is false if c cannot hold it.
func setValue(host rawnetlink.Order, c *iptables.Cond, data, mask []byte) (ok bool) {
	switch c.Field {
	case iptables.InIface, iptables.OutIface:
		c.Text = rawnetlink.Name(data)
		return true
	case iptables.SrcAddr, iptables.DstAddr:
		a, ok := netip.AddrFromSlice(data)
		bits := a.BitLen()
		if mask != nil {
			bits, _ = net.IPMask(mask).Size()
		}
		c.Prefix = netip.PrefixFrom(a, bits)
		return ok && c.Prefix.IsValid()
	case iptables.State, iptables.Status:
		data = mask
	case iptables.SrcPort, iptables.DstPort, iptables.ReplySrcPort:
		c.Num = rawnetlink.BigEndian(data)
		return true
	default:
	}
	c.Num = rawnetlink.Number32(host, data)
	return true
}
