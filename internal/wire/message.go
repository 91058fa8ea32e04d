// Package wire drops fields that the agent does not keep from the API server's watch events, before they are decoded: decoding a whole pod
// takes more memory and time than all that the agent does with it.
package wire

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Message says which fields of a protobuf message are kept, by their numbers. Fields that it does not name are dropped.
type Message map[protowire.Number]Field

// Field is a field that is kept. Its zero value keeps all of it.
type Field struct {
	// Inside says what is kept of the message that is the field's value; nil keeps all.
	Inside Message
	// Only reports whether an element of a repeated field, or an entry of a map, is kept. It gets the value of the element's field number 1,
	// which is its name or key. nil keeps all.
	Only func(name string) bool

	inside content // other than a Message
}

// content is what a field's value has.
type content interface {
	// appendKept appends to dst what is kept of a value. ok is false if the value is not as expected.
	appendKept(dst, value []byte) (kept []byte, ok bool)
}

// appendKept appends what is kept of a message. Lengths keep the number of bytes that they had, which protobuf's decoders accept.
func (m Message) appendKept(dst, message []byte) (kept []byte, ok bool) {
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return dst, false
		}
		size := protowire.ConsumeFieldValue(number, kind, message[tag:])
		if size < 0 {
			return dst, false
		}
		whole := message[:tag+size]
		message = message[tag+size:]
		f, wanted := m[number]
		switch {
		case !wanted:
		case kind != protowire.BytesType:
			dst = append(dst, whole...)
		default:
			if dst, ok = f.appendTo(dst, whole, tag); !ok {
				return dst, false
			}
		}
	}
	return dst, true
}

// appendTo appends what is kept of a length-delimited field. whole starts with the field's tag, which is tag bytes long.
func (f Field) appendTo(dst, whole []byte, tag int) (kept []byte, ok bool) {
	value, _ := protowire.ConsumeBytes(whole[tag:])
	inside := f.inside
	if f.Inside != nil {
		inside = f.Inside
	}
	switch {
	case f.Only != nil && !f.Only(string(bytesOf(value, 1))):
		return dst, true
	case inside == nil:
		return append(dst, whole...), true
	}
	head := whole[:len(whole)-len(value)]
	begin := len(dst) + len(head)
	if dst, ok = inside.appendKept(append(dst, head...), value); !ok {
		return dst, false
	}
	putLength(dst[begin-len(head)+tag:begin], len(dst)-begin)
	return dst, true
}

// putLength writes a length in as many bytes as there are.
func putLength(to []byte, length int) {
	for i := range to {
		to[i] = byte(length&0x7f) | 0x80
		length >>= 7
	}
	to[len(to)-1] &^= 0x80
}

// Names is a Field's Only for elements with one of these names.
func Names(names ...string) func(string) bool {
	return func(name string) bool { return slices.Contains(names, name) }
}

// bytesOf returns the value of the last length-delimited field with the wanted number, or nil.
func bytesOf(message []byte, wanted protowire.Number) (value []byte) {
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return nil
		}
		size := protowire.ConsumeFieldValue(number, kind, message[tag:])
		if size < 0 {
			return nil
		}
		if number == wanted && kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(message[tag:])
		}
		message = message[tag+size:]
	}
	return value
}
