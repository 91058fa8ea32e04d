// Package notice says, once each, what of a configuration this stand-in does not understand.
package notice

import (
	"log/slog"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Board remembers what it has said.
type Board struct {
	Log  *slog.Logger
	said sync.Map
}

// Unknown says that a part of a resource has no effect here.
func (b *Board) Unknown(resource, part string) {
	if _, again := b.said.LoadOrStore(part, true); !again {
		b.Log.Warn("not understood, no effect", "resource", resource, "part", part)
	}
}

// Fields says which fields of a message are set and not listed. Listed are fields that have an effect here, and fields that need none in a test.
func (b *Board) Fields(resource string, m proto.Message, listed ...protoreflect.Name) {
	r := m.ProtoReflect()
	r.Range(func(d protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if !slices.Contains(listed, d.Name()) {
			b.Unknown(resource, string(r.Descriptor().Name()+"."+d.Name()))
		}
		return true
	})
}
