package nftables

import (
	"encoding/binary"
	"iter"
	"strings"
)

// attr is a netlink attribute. All code that reads one accepts any bytes, since a pod may have written them.
type attr struct {
	kind uint16 // without the flags
	raw  []byte // with its header, as the kernel returned it
	data []byte
}

const (
	attrHeader = 4
	attrKind   = 1<<14 - 1 // NLA_TYPE_MASK
)

// each yields the attributes of a message, or of a nested attribute. Bytes that are no attribute are yielded as one of kind 0.
func each(b []byte) iter.Seq[attr] {
	return func(yield func(attr) bool) {
		for len(b) > 0 {
			size := 0
			if len(b) >= attrHeader {
				size = int(binary.NativeEndian.Uint16(b))
			}
			if size < attrHeader || size > len(b) {
				yield(attr{raw: b})
				return
			}
			a := attr{kind: binary.NativeEndian.Uint16(b[2:]) & attrKind, raw: b[:size], data: b[attrHeader:size]}
			if !yield(a) {
				return
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
}

// find returns the data of the first attribute of a kind, or nil.
func find(b []byte, kind uint16) []byte {
	for a := range each(b) {
		if a.kind == kind {
			return a.data
		}
	}
	return nil
}

// text returns a string up to its terminating zero.
func text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// number reads a number in network byte order, from as many bytes as there are, up to four.
func number(b []byte) (n uint32) {
	for _, x := range b[:min(len(b), 4)] {
		n = n<<8 | uint32(x)
	}
	return n
}

// add appends an attribute.
func add(b []byte, kind uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attrHeader+len(data))) //nolint:gosec // names, which are short
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func named(b []byte, kind uint16, name string) []byte { return add(b, kind, append([]byte(name), 0)) }
