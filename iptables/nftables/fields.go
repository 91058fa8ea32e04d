package nftables

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

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
	case iptables.Socket:
		return &expr.Socket{Key: expr.SocketKeyTransparent, Register: reg}
	case iptables.SrcPort, iptables.DstPort, iptables.TCPFlags:
		family = 0
	default:
	}
	p := payloads()[fieldAt{f, family}]
	return &p
}

// fieldOf is the inverse of load. ok is false for an expression that load never writes.
func fieldOf(e expression) (field iptables.Field, ok bool) {
	switch e.name {
	case "meta":
		field, ok = keyOf(metas(), expr.MetaKey(e.number(unix.NFTA_META_KEY)))
		return field, ok && e.number(unix.NFTA_META_DREG) == reg
	case "ct":
		field, ok = keyOf(cts(), expr.CtKey(e.number(unix.NFTA_CT_KEY)))
		return field, ok && e.number(unix.NFTA_CT_DREG) == reg && e.only(unix.NFTA_CT_KEY, unix.NFTA_CT_DREG)
	case "fib":
		field, ok = map[uint32]iptables.Field{fibSource: iptables.SrcType, fibDestination: iptables.DstType}[e.number(fibFlags)]
		return field, ok && e.number(fibResult) == fibAddrType && e.number(fibDreg) == reg
	case "socket":
		ok = e.number(expr.NFTA_SOCKET_KEY) == expr.NFT_SOCKET_TRANSPARENT && e.number(expr.NFTA_SOCKET_DREG) == reg
		return iptables.Socket, ok
	case "payload":
		for at, p := range payloads() {
			if uint32(p.Base) == e.number(unix.NFTA_PAYLOAD_BASE) && p.Offset == e.number(unix.NFTA_PAYLOAD_OFFSET) &&
				p.Len == e.number(unix.NFTA_PAYLOAD_LEN) {
				return at.field, e.number(unix.NFTA_PAYLOAD_DREG) == reg
			}
		}
	}
	return 0, false
}

func keyOf[K comparable](fields map[iptables.Field]K, key K) (iptables.Field, bool) {
	for f, k := range fields {
		if k == key {
			return f, true
		}
	}
	return 0, false
}

// The kernel's numbers for fib (nf_tables.h), which golang.org/x/sys/unix does not name.
const (
	fibDreg     = 1
	fibResult   = 2
	fibFlags    = 3
	fibAddrType = 3 // NFT_FIB_RESULT_ADDRTYPE
	fibSource   = 1 // NFTA_FIB_F_SADDR

	fibDestination = 2 // NFTA_FIB_F_DADDR
)

// value returns the bytes that the register is compared with, in the byte order in which the kernel keeps the field.
func value(c iptables.Cond) []byte {
	switch c.Field {
	case iptables.Family, iptables.Protocol, iptables.TCPFlags, iptables.Direction, iptables.Socket:
		return binary.BigEndian.AppendUint32(nil, c.Num)[3:]
	case iptables.SrcPort, iptables.DstPort:
		return binary.BigEndian.AppendUint32(nil, c.Num)[2:]
	case iptables.InIface, iptables.OutIface:
		name := make([]byte, unix.IFNAMSIZ)
		copy(name, c.Text)
		return name
	case iptables.SrcAddr, iptables.DstAddr:
		return c.Prefix.Masked().Addr().AsSlice()
	default:
		return binaryutil.NativeEndian.PutUint32(c.Num)
	}
}

// mask returns the bits of the field that are compared, or nil for all.
func mask(c iptables.Cond) []byte {
	switch {
	case c.Field == iptables.TCPFlags:
		return []byte{iptables.OpeningMask}
	case c.Field.IsBits():
		return binaryutil.NativeEndian.PutUint32(c.Num)
	case c.Prefix.IsValid() && !c.Prefix.IsSingleIP():
		return net.CIDRMask(c.Prefix.Bits(), c.Prefix.Addr().BitLen())
	}
	return nil
}

// setValue is the inverse of value and mask: it puts what the register is compared with into c.
func setValue(c *iptables.Cond, data, mask []byte) error {
	switch c.Field {
	case iptables.InIface, iptables.OutIface:
		if len(data) != unix.IFNAMSIZ {
			return fmt.Errorf("name of %d bytes", len(data)) // matches all interfaces that begin with it
		}
		c.Text = text(data)
		return nil
	case iptables.SrcAddr, iptables.DstAddr:
		a, ok := netip.AddrFromSlice(data)
		if !ok {
			return fmt.Errorf("address of %d bytes", len(data))
		}
		bits := a.BitLen()
		if mask != nil {
			bits, _ = net.IPMask(mask).Size()
		}
		if bits == 0 || len(data) != len(mask) && mask != nil {
			return fmt.Errorf("address of %d bytes with mask %x", len(data), mask)
		}
		c.Prefix = netip.PrefixFrom(a, bits)
		return nil
	case iptables.State, iptables.Status:
		data = mask
	default:
	}
	switch len(data) {
	case 1:
		c.Num = uint32(data[0])
	case 2:
		c.Num = uint32(binary.BigEndian.Uint16(data))
	case 4:
		c.Num = binaryutil.NativeEndian.Uint32(data)
	default:
		return fmt.Errorf("value of %d bytes", len(data))
	}
	return nil
}
