package rawnetlink

import "encoding/binary"

// Order is a byte order. A number is read and written with the order and the size that the kernel has it in: Host for what the kernel keeps
// for itself (headers and lengths of netlink, rtnetlink's attributes, marks, users, devices, zones, states), binary.BigEndian for what is in
// packets and for nf_tables' own attributes. On big-endian machines a number of two bytes is not the first half of one of four.
type Order interface {
	binary.ByteOrder
	binary.AppendByteOrder
}

// Host returns the machine's byte order. Who encodes takes it as an argument, so that tests can give the other one.
func Host() Order { return binary.NativeEndian }

// BigEndian reads a number in network byte order, as those of nf_tables, from as many bytes as there are, up to four.
func BigEndian(b []byte) (n uint32) {
	for _, x := range b[:min(len(b), 4)] {
		n = n<<8 | uint32(x)
	}
	return n
}

// NativeEndian reads a number in the machine's byte order, from as many bytes as there are, up to four.
func NativeEndian(b []byte) uint32 { return Number32(Host(), b) }

// Number32 is NativeEndian for a machine with an order.
func Number32(host Order, b []byte) uint32 {
	if host.Uint16([]byte{0, 1}) == 1 {
		return BigEndian(b)
	}
	var whole [4]byte
	copy(whole[:], b)
	return host.Uint32(whole[:])
}
