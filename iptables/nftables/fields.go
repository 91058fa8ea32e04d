package nftables

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/iptables"
)

// reg is the one register that our rules use: every condition loads, compares, and is done with it.
const reg = 1

// fieldAt is a field of one family; the conditions in front of it have settled which. Ports stand at 0.
type fieldAt struct {
	field  iptables.Field
	family uint32
}

// payloads are the fields that stand in the packet: where, and how long, in bytes.
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

// metas are the fields that the kernel keeps beside the packet.
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
	}
}

// load gives the expression that puts a field into the register.
func load(f iptables.Field, family uint32) expr.Any {
	if key, ok := metas()[f]; ok {
		return &expr.Meta{Key: key, Register: reg}
	}
	if key, ok := cts()[f]; ok {
		return &expr.Ct{Key: key, Register: reg}
	}
	if f == iptables.SrcType {
		return &expr.Fib{Register: reg, FlagSADDR: true, ResultADDRTYPE: true}
	}
	if f == iptables.SrcPort || f == iptables.DstPort || f == iptables.TCPFlags {
		family = 0
	}
	p := payloads()[fieldAt{f, family}]
	return &p
}

// fieldOf is load's inverse.
func fieldOf(e expr.Any) (iptables.Field, bool) {
	switch e := e.(type) {
	case *expr.Meta:
		for f, key := range metas() {
			if key == e.Key {
				return f, true
			}
		}
	case *expr.Ct:
		for f, key := range cts() {
			if key == e.Key {
				return f, true
			}
		}
	case *expr.Fib:
		return iptables.SrcType, e.FlagSADDR && e.ResultADDRTYPE && !e.FlagOIF && !e.FlagIIF && !e.FlagMARK
	case *expr.Payload:
		for at, p := range payloads() {
			if p.Base == e.Base && p.Offset == e.Offset && p.Len == e.Len {
				return at.field, true
			}
		}
	}
	return 0, false
}

// value gives the bytes that the register is compared with, in the byte order that the kernel keeps the field in.
func value(c iptables.Cond) []byte {
	switch c.Field {
	case iptables.Family, iptables.Protocol, iptables.TCPFlags, iptables.Direction:
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

// mask gives the bits of the field that count, or nil for all.
func mask(c iptables.Cond) []byte {
	switch {
	case c.Field == iptables.TCPFlags:
		return []byte{iptables.OpeningMask}
	case c.Field == iptables.State:
		return binaryutil.NativeEndian.PutUint32(c.Num)
	case c.Prefix.IsValid() && !c.Prefix.IsSingleIP():
		return net.CIDRMask(c.Prefix.Bits(), c.Prefix.Addr().BitLen())
	}
	return nil
}

// setValue is value's and mask's inverse: it puts what the register is compared with into c.
func setValue(c *iptables.Cond, data, mask []byte) error {
	switch c.Field {
	case iptables.InIface, iptables.OutIface:
		c.Text = strings.TrimRight(string(data), "\x00")
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
		c.Prefix = netip.PrefixFrom(a, bits)
		return nil
	case iptables.State:
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
