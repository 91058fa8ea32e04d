package wire

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// field returns a field with a length.
func field(number protowire.Number, value string) string {
	return string(protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), value))
}

// number returns a field with a number.
func number(n protowire.Number, value uint64) string {
	return string(protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), value))
}

func TestAppendKept(t *testing.T) {
	long := strings.Repeat("x", 300)
	for name, c := range map[string]struct {
		in   string
		keep Message
		want string
	}{
		"nothing":                           {in: field(1, "a"), keep: nil},
		"fields of both kinds":              {in: field(1, "a") + number(2, 700) + field(3, "c") + number(4, 5), keep: Message{1: {}, 2: {}}, want: field(1, "a") + number(2, 700)},
		"every element":                     {in: field(1, "a") + field(2, "x") + field(1, "b"), keep: Message{1: {}}, want: field(1, "a") + field(1, "b")},
		"what is inside":                    {in: field(1, field(1, "a")+field(2, "b")), keep: Message{1: {Inside: Message{2: {}}}}, want: field(1, field(2, "b"))},
		"named elements":                    {in: field(1, field(1, "a")+field(2, "b")) + field(1, field(1, "c")), keep: Message{1: {Only: Names("c", "d")}}, want: field(1, field(1, "c"))},
		"named elements without a name":     {in: field(1, field(2, "a")), keep: Message{1: {Only: Names("a")}}},
		"an empty message":                  {in: field(1, field(2, "a")), keep: Message{1: {Inside: Message{}}}, want: field(1, "")},
		"one that becomes a short message":  {in: field(1, field(2, long)+field(1, "a")), keep: Message{1: {Inside: Message{1: {}}}}, want: "\x0a\x83\x00" + field(1, "a")},
		"a number where there is a message": {in: number(1, 7), keep: Message{1: {Inside: Message{}}}, want: number(1, 7)},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := c.keep.appendKept([]byte("before"), []byte(c.in))
			if !ok || string(got) != "before"+c.want {
				t.Errorf("got %q, %v; want %q", got, ok, c.want)
			}
		})
	}
	for name, in := range map[string]string{"half a tag": "\x80", "half a value": field(1, "abc")[:3], "a group that does not end": "\x0b"} {
		if got, ok := (Message{1: {}}).appendKept(nil, []byte(in)); ok {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

// Nothing that the server sends makes a panic or grows, and all of a message that keeps everything comes out.
func FuzzAppendKept(f *testing.F) {
	f.Add([]byte(field(1, field(1, "a")+field(2, "b")) + number(2, 3)))
	f.Add([]byte(field(2, field(1, "k8s\x00"+field(1, field(2, "Pod"))+field(2, field(1, "x"))))))
	f.Fuzz(func(t *testing.T, message []byte) {
		for _, keep := range []Message{{1: {Inside: Message{1: {}}}, 2: {Only: Names("a")}}, eventOf("Pod", Message{1: {}})} {
			if kept, ok := keep.appendKept(nil, message); ok && len(kept) > len(message) {
				t.Errorf("%q has become %q", message, kept)
			}
		}
		if kept, ok := all(message).appendKept(nil, message); ok && !bytes.Equal(kept, message) {
			t.Errorf("%q has become %q", message, kept)
		}
	})
}

// all keeps every field that a message has.
func all(message []byte) Message {
	keep := Message{}
	for len(message) > 0 {
		n, _, size := protowire.ConsumeField(message)
		if size < 0 {
			break
		}
		keep[n] = Field{}
		message = message[size:]
	}
	return keep
}
