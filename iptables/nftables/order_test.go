package nftables

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/google/nftables/expr"

	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

func orders() map[string]rawnetlink.Order {
	return map[string]rawnetlink.Order{"little-endian": binary.LittleEndian, "big-endian": binary.BigEndian}
}

// loadedBy is the register after the kernel has loaded a field that holds a number: in network order what is in the packet or in the
// connection's addresses, otherwise as nft_reg_store8 or a store of 32 bits writes it (nf_tables.h, nft_meta.c, nft_ct.c, nft_fib.c).
func loadedBy(host rawnetlink.Order, field iptables.Field, n uint32) []byte {
	switch field {
	case iptables.SrcPort, iptables.DstPort, iptables.ReplySrcPort:
		return append(binary.BigEndian.AppendUint16(nil, uint16(n)), 0, 0)
	case iptables.Family, iptables.Protocol, iptables.TCPFlags, iptables.Direction, iptables.Socket, iptables.Transparent:
		return []byte{byte(n), 0, 0, 0}
	default:
		return host.AppendUint32(nil, n)
	}
}

// passes runs comparisons with a register as the kernel does: byte by byte.
func passes(t *testing.T, host rawnetlink.Order, register []byte, expressions []expr.Any) bool {
	t.Helper()
	for _, e := range expressions {
		switch e := e.(type) {
		case *expr.Bitwise:
			for i := range register[:e.Len] {
				register[i] = register[i]&e.Mask[i] ^ e.Xor[i]
			}
		case *expr.Byteorder:
			binary.BigEndian.PutUint32(register, host.Uint32(register))
		case *expr.Cmp:
			order := bytes.Compare(register[:len(e.Data)], e.Data)
			if !map[expr.CmpOp]bool{expr.CmpOpEq: order == 0, expr.CmpOpNeq: order != 0, expr.CmpOpLte: order <= 0, expr.CmpOpGte: order >= 0}[e.Op] {
				return false
			}
		default:
			t.Fatalf("expression %T", e)
		}
	}
	return true
}

func TestCompare_eitherByteOrder_matchesWhatTheKernelLoads(t *testing.T) {
	cases := []struct {
		in       iptables.Cond
		yes, not uint32
	}{
		{iptables.Cond{Field: iptables.Family, Num: iptables.IPv6}, iptables.IPv6, iptables.IPv4},
		{iptables.Cond{Field: iptables.Protocol, Num: iptables.TCP}, iptables.TCP, iptables.UDP},
		{iptables.Cond{Field: iptables.InIndex, Num: 1}, 1, 1 << 24},
		{iptables.Cond{Field: iptables.OutIndex, Num: 258}, 258, 513},
		{iptables.Cond{Field: iptables.SrcPort, Num: 15001}, 15001, 39226},
		{iptables.Cond{Field: iptables.DstPort, Num: 80}, 80, 80 << 8},
		{iptables.Cond{Field: iptables.ReplySrcPort, Num: 80}, 80, 80 << 8},
		{iptables.Cond{Field: iptables.OwnerUID, Num: 1337}, 1337, 1338},
		{iptables.Cond{Field: iptables.OwnerUID, Num: 1000, Last: 1255}, 1255, 1256},
		{iptables.Cond{Field: iptables.OwnerGID, Num: 1337}, 1337, 1337 << 16},
		{iptables.Cond{Field: iptables.Mark, Num: 0x539}, 0x539, 0x39050000},
		{iptables.Cond{Field: iptables.ConnMark, Num: 0x539}, 0x539, 0},
		{iptables.Cond{Field: iptables.State, Num: iptables.Established | iptables.Related}, iptables.Related, iptables.New},
		{iptables.Cond{Field: iptables.Status, Num: iptables.Confirmed}, iptables.Confirmed | iptables.Translated, iptables.Translated},
		{iptables.Cond{Field: iptables.SrcType, Num: iptables.Local}, iptables.Local, 1},
		{iptables.Cond{Field: iptables.DstType, Num: iptables.Local}, iptables.Local, iptables.Local << 24},
		{iptables.Cond{Field: iptables.TCPFlags, Num: iptables.OpeningFlags}, iptables.OpeningFlags, iptables.AnsweringFlags},
		{iptables.Cond{Field: iptables.Direction, Num: iptables.Reply}, iptables.Reply, 0},
		{iptables.Cond{Field: iptables.Socket, Num: iptables.AnySocket}, 0, 2},
		{iptables.Cond{Field: iptables.Transparent, Num: iptables.TransparentSocket}, iptables.TransparentSocket, 0},
	}
	for name, host := range orders() {
		for _, c := range cases {
			expressions := compare(host, c.in, "")
			for _, n := range []uint32{c.yes, c.not} {
				if got := passes(t, host, loadedBy(host, c.in.Field, n), expressions); got != (n == c.yes) {
					t.Errorf("%s: field %d, %d, matches %d: %t", name, c.in.Field, c.in.Num, n, got)
				}
			}
			if c.in.Last == 0 {
				back := iptables.Cond{Field: c.in.Field}
				if !setValue(host, &back, value(host, c.in), mask(host, c.in)) || back.Num != c.in.Num {
					t.Errorf("%s: field %d is read back as %d, want %d", name, c.in.Field, back.Num, c.in.Num)
				}
			}
		}
	}
}

func TestVerdict_eitherByteOrder_writesWhatTheKernelReads(t *testing.T) {
	for name, host := range orders() {
		for _, c := range []struct {
			in   iptables.Action
			want []byte
		}{
			{iptables.Action{Verb: iptables.Redirect, Port: 15006}, []byte{0x3a, 0x9e}}, // nft_reg_load_be16 in nft_redir.c
			{iptables.Action{Verb: iptables.TProxy, Port: 15006}, []byte{0x3a, 0x9e}},
			{iptables.Action{Verb: iptables.SetMark, Num: 0x539}, host.AppendUint32(nil, 0x539)}, // regs->data in nft_meta.c
			{iptables.Action{Verb: iptables.Divert, Num: 0x539}, host.AppendUint32(nil, 0x539)},
			{iptables.Action{Verb: iptables.Zone, Num: 2}, host.AppendUint16(nil, 2)}, // nft_reg_load16 in nft_ct.c
			{iptables.Action{Verb: iptables.ZoneOneWay, Num: 1}, host.AppendUint16(nil, 1)},
		} {
			first := verdict(host, c.in, iptables.IPv4)[0]
			if number, ok := first.(*expr.Immediate); !ok || !bytes.Equal(number.Data, c.want) {
				t.Errorf("%s: %+v: %+v, want % x", name, c.in, first, c.want)
			}
			if back := rawnetlink.Number32(host, c.want); c.in.Port == 0 && back != c.in.Num {
				t.Errorf("%s: %+v is read back as %d", name, c.in, back)
			}
		}
	}
}
