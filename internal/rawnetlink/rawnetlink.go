// Package rawnetlink asks the kernel over netlink, in the network namespace of the calling thread. A pod may have written what its
// namespace holds, so no answer is trusted to be well-formed, none is read beyond its limit, and none is waited for beyond the time
// that the caller sets.
package rawnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Request is one message to the kernel.
type Request struct {
	Kind, Flags uint16
	// Header is the header in front of the attributes, which depends on the kind of message.
	Header []byte
	// Attributes are joined as they are; Text and Number make them.
	Attributes [][]byte
	// Silent means that the kernel answers only with an error, which refuses all requests: the begin and end of a batch.
	Silent bool
}

// Nftables returns a request to nf_tables about objects of a family (unix.NFPROTO_...). kind is unix.NFT_MSG_....
func Nftables(kind uint16, family byte, attributes ...[]byte) Request {
	return Request{Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, Header: []byte{family, unix.NFNETLINK_V0, 0, 0}, Attributes: attributes}
}

const (
	// SizeofNfgenmsg is the size of the header in front of the attributes of nf_tables (struct nfgenmsg).
	SizeofNfgenmsg = 4
	// TableOwner is NFT_TABLE_F_OWNER: only the process that made a table can change it.
	TableOwner = 2
)

// Batch returns requests to nf_tables as one transaction: the kernel carries out all of them or none. It answers with errors, and
// acknowledges the last request. The attributes go into the message that begins the batch.
func Batch(requests []Request, attributes ...[]byte) []Request {
	edge := func(kind uint16, attributes ...[]byte) Request {
		header := binary.BigEndian.AppendUint16([]byte{0, unix.NFNETLINK_V0}, unix.NFNL_SUBSYS_NFTABLES)
		return Request{Kind: kind, Header: header, Attributes: attributes, Silent: true}
	}
	out := slices.Concat([]Request{edge(unix.NFNL_MSG_BATCH_BEGIN, attributes...)}, requests, []Request{edge(unix.NFNL_MSG_BATCH_END)})
	last := &out[len(requests)] // all are answered together
	last.Silent, last.Flags = false, last.Flags|unix.NLM_F_ACK
	return out
}

// Answer is the kernel's answer to one Request. Body has the header and the attributes; it is empty if the kernel only
// acknowledges.
type Answer struct {
	Body []byte
	Err  error
}

// Object returns the attributes of an object of nf_tables, by kind; nil if the kernel has answered with none.
func (a Answer) Object() map[uint16][]byte {
	if a.Err != nil || len(a.Body) <= SizeofNfgenmsg {
		return nil
	}
	return Attributes(Object(a.Body))
}

// Object returns the attributes of the object of nf_tables that an answer, or a message of a dump, is about.
func Object(body []byte) []byte { return body[min(len(body), SizeofNfgenmsg):] }

// Text returns an attribute with a name.
func Text(kind uint16, name string) []byte { return Bytes(kind, append([]byte(name), 0)) }

// Number returns an attribute with a number in the machine's byte order.
func Number(kind uint16, n uint32) []byte {
	return Bytes(kind, binary.NativeEndian.AppendUint32(nil, n))
}

// Bytes returns an attribute with bytes, for example an address.
func Bytes(kind uint16, data []byte) []byte {
	a := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(data)))
	a = append(binary.NativeEndian.AppendUint16(a, kind), data...)
	return append(a, make([]byte, align(len(a))-len(a))...)
}

func align(n int) int { return (n + 3) &^ 3 }

// Attributes returns the attributes in data by kind. Of duplicates the last counts; a truncated one is left out.
func Attributes(data []byte) map[uint16][]byte {
	return maps.Collect(Each(data))
}

// Each yields the kind and value of each attribute in data. A truncated one is left out.
func Each(data []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(data) >= unix.SizeofNlAttr {
			length := int(binary.NativeEndian.Uint16(data))
			if length < unix.SizeofNlAttr || length > len(data) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(data[2:])&^unix.NLA_F_NESTED, data[unix.SizeofNlAttr:length]) {
				return
			}
			data = data[min(len(data), align(length)):]
		}
	}
}

// Name returns the text of an attribute, up to its terminating zero.
func Name(attribute []byte) string {
	name, _, _ := strings.Cut(string(attribute), "\x00")
	return name
}

// Size returns the length of the request as a message.
func (r Request) Size() int {
	size := unix.SizeofNlMsghdr + len(r.Header)
	for _, a := range r.Attributes {
		size += len(a)
	}
	return size
}

// append adds the request to messages.
func (r Request) append(messages []byte, sequence uint32) []byte {
	m := binary.NativeEndian.AppendUint32(messages, uint32(r.Size()))
	m = binary.NativeEndian.AppendUint16(m, r.Kind)
	m = binary.NativeEndian.AppendUint16(m, r.Flags|unix.NLM_F_REQUEST)
	m = binary.NativeEndian.AppendUint32(m, sequence)
	m = binary.NativeEndian.AppendUint32(m, 0)
	m = append(m, r.Header...)
	for _, a := range r.Attributes {
		m = append(m, a...)
	}
	return m
}

// Ask is Conn.Ask on a socket of its own.
func Ask(end time.Time, protocol int, requests ...Request) ([]Answer, error) {
	c, err := Open(protocol)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Ask(end, requests...)
}

// Ask sends requests at once and returns the answer to each, in order. It waits until end at most, and takes the kernel's answers until
// then. The kernel must answer each request that is not Silent once: it asks for one object, or has NLM_F_ACK. An error for a Silent one is
// returned as Ask's error.
func (c *Conn) Ask(end time.Time, requests ...Request) ([]Answer, error) {
	first := c.sequence
	open, err := c.sendAll(requests)
	if err != nil {
		return nil, err
	}
	answers := make([]Answer, len(requests))
	answered := make([]bool, len(requests))
	for open > 0 {
		messages, err := c.receive(end)
		if err != nil {
			return nil, err
		}
		for m := range messages {
			i := m.sequence - first
			if i >= uint32(len(requests)) || answered[i] {
				continue
			}
			body, _, err := m.take()
			if requests[i].Silent {
				if err != nil {
					return nil, fmt.Errorf("ask the kernel over netlink: message %d of %d, of type %#x: %w", i+1, len(requests), requests[i].Kind, err)
				}
				continue
			}
			answered[i] = true
			open--
			answers[i] = Answer{Body: slices.Clone(body), Err: err}
		}
	}
	return answers, nil
}

// sending are buffers for requests, which the kernel has copied when they are sent.
var sending = sync.Pool{New: func() any { return new([]byte) }}

// longestKept is the size from which on a buffer for requests is not kept.
const longestKept = 1 << 16

// sendAll sends requests as one datagram, and returns how many of them are answered.
func (c *Conn) sendAll(requests []Request) (answered int, err error) {
	buffer := sending.Get().(*[]byte)
	all := (*buffer)[:0]
	for _, r := range requests {
		if all = r.append(all, c.next()); !r.Silent {
			answered++
		}
	}
	err = c.send(all)
	if *buffer = all; cap(all) <= longestKept {
		sending.Put(buffer)
	}
	return answered, err
}

// ErrInterrupted means that objects have changed while a Dump read them: some may be missing, or there twice. Nothing is known then, as
// when time has run out: it is os.ErrDeadlineExceeded, too.
var ErrInterrupted error = interrupted{}

type interrupted struct{}

func (interrupted) Error() string { return "what was read has changed meanwhile" }

func (interrupted) Is(target error) bool { return target == os.ErrDeadlineExceeded }

// Uninterrupted calls read again after ErrInterrupted, up to three times in all.
func Uninterrupted(read func() error) (err error) {
	for range 3 {
		if err = read(); !errors.Is(err, ErrInterrupted) {
			return err
		}
	}
	return err
}

// Dump asks for all objects of a kind and calls f with each, until f returns false or end has come. What f has not seen by then is
// never taken from the kernel.
func (c *Conn) Dump(end time.Time, r Request, f func(body []byte) (more bool)) error {
	r.Flags |= unix.NLM_F_DUMP
	sequence := c.next()
	if err := c.send(r.append(nil, sequence)); err != nil {
		return err
	}
	c.unread = true
	for datagrams := 0; ; datagrams++ {
		if datagrams == shortDump {
			c.Grow()
		}
		messages, err := c.receiveNext(end)
		if err != nil {
			return err
		}
		for m := range messages {
			if m.sequence != sequence {
				continue
			}
			if m.flags&unix.NLM_F_DUMP_INTR != 0 {
				return ErrInterrupted
			}
			body, ended, err := m.take()
			if ended {
				c.unread = false
				return err
			}
			if !f(body) {
				return nil
			}
		}
	}
}

// message is one message of the kernel.
type message struct {
	kind, flags uint16
	sequence    uint32
	data        []byte
}

// take returns a message's body. ended reports whether it is the last one for its request.
func (m message) take() (body []byte, ended bool, err error) {
	if m.kind != unix.NLMSG_ERROR && m.kind != unix.NLMSG_DONE {
		return m.data, false, nil
	}
	if len(m.data) >= 4 {
		if errno := -int32(binary.NativeEndian.Uint32(m.data)); errno > 0 {
			err = unix.Errno(uint32(errno))
		}
	}
	return nil, true, err
}
