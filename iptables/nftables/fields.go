package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/iptables"
)

// reg is the one register that our rules use: every condition loads, compares, and is done with it.
const reg = 1

// addrAt says where in the network header an address of a family stands, in bytes.
type addrAt struct{ offset, length uint32 }

// loadMeta are the fields that the kernel keeps beside the packet.
func loadMeta(f iptables.Field) (expr.MetaKey, bool) {
	switch f {
	case iptables.Family:
		return expr.MetaKeyNFPROTO, true
	case iptables.Protocol:
		return expr.MetaKeyL4PROTO, true
	case iptables.OutIface:
		return expr.MetaKeyOIFNAME, true
	case iptables.OwnerUID:
		return expr.MetaKeySKUID, true
	case iptables.OwnerGID:
		return expr.MetaKeySKGID, true
	default:
		return 0, false
	}
}

func addrOffset(f iptables.Field, family uint32) addrAt {
	switch {
	case family == iptables.IPv4 && f == iptables.SrcAddr:
		return addrAt{12, 4}
	case family == iptables.IPv4:
		return addrAt{16, 4}
	case f == iptables.SrcAddr:
		return addrAt{8, 16}
	default:
		return addrAt{24, 16}
	}
}

// load gives the expression that puts a field into the register; family is what the conditions in front have settled.
func load(f iptables.Field, family uint32) expr.Any {
	if key, ok := loadMeta(f); ok {
		return &expr.Meta{Key: key, Register: reg}
	}
	if f == iptables.DstPort {
		return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
	}
	at := addrOffset(f, family)
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: at.offset, Len: at.length}
}

// value gives the bytes that the register is compared with, in the byte order that the kernel keeps the field in.
func value(c iptables.Cond) []byte {
	switch c.Field {
	case iptables.Family, iptables.Protocol:
		return binary.BigEndian.AppendUint32(nil, c.Num)[3:]
	case iptables.OwnerUID, iptables.OwnerGID:
		return binaryutil.NativeEndian.PutUint32(c.Num)
	case iptables.DstPort:
		return binary.BigEndian.AppendUint32(nil, c.Num)[2:]
	case iptables.OutIface:
		name := make([]byte, unix.IFNAMSIZ)
		copy(name, c.Text)
		return name
	case iptables.SrcAddr, iptables.DstAddr:
		return c.Prefix.Addr().AsSlice()
	}
	return nil
}

// setValue is value's inverse: it puts what the register is compared with into c.
func setValue(c *iptables.Cond, data []byte) error {
	switch {
	case c.Field == iptables.OutIface:
		c.Text = strings.TrimRight(string(data), "\x00")
	case c.Field == iptables.SrcAddr || c.Field == iptables.DstAddr:
		a, ok := netip.AddrFromSlice(data)
		if !ok {
			return fmt.Errorf("address of %d bytes", len(data))
		}
		c.Prefix = netip.PrefixFrom(a, a.BitLen())
	case len(data) == 1:
		c.Num = uint32(data[0])
	case len(data) == 2:
		c.Num = uint32(binary.BigEndian.Uint16(data))
	case len(data) == 4:
		c.Num = binaryutil.NativeEndian.Uint32(data)
	default:
		return fmt.Errorf("value of %d bytes", len(data))
	}
	return nil
}

// fieldOf is load's inverse.
func fieldOf(e expr.Any) (iptables.Field, bool) {
	switch e := e.(type) {
	case *expr.Meta:
		for f := iptables.Family; f <= iptables.OwnerGID; f++ {
			if key, ok := loadMeta(f); ok && key == e.Key {
				return f, !e.SourceRegister
			}
		}
	case *expr.Payload:
		if e.Base == expr.PayloadBaseTransportHeader && e.Offset == 2 && e.Len == 2 {
			return iptables.DstPort, true
		}
		for _, family := range []uint32{iptables.IPv4, iptables.IPv6} {
			for _, f := range []iptables.Field{iptables.SrcAddr, iptables.DstAddr} {
				if at := addrOffset(f, family); e.Base == expr.PayloadBaseNetworkHeader && at == (addrAt{e.Offset, e.Len}) {
					return f, true
				}
			}
		}
	}
	return 0, false
}
