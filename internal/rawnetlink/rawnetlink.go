// Package rawnetlink asks the kernel over netlink, in the network namespace of the calling thread. A pod may have written what its
// namespace holds, so no answer is trusted to be well-formed, none is read beyond its limit, and none is waited for beyond the time
// that the caller sets.
package rawnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bufferSize is more than the kernel sends in one datagram.
const bufferSize = 1 << 15

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

// Answer is the kernel's answer to one Request. Body has the header and the attributes; it is empty if the kernel only
// acknowledges.
type Answer struct {
	Body []byte
	Err  error
}

// Text returns an attribute with a name.
func Text(kind uint16, name string) []byte { return attribute(kind, append([]byte(name), 0)) }

// Number returns an attribute with a number in the machine's byte order.
func Number(kind uint16, n uint32) []byte {
	return attribute(kind, binary.NativeEndian.AppendUint32(nil, n))
}

// Bytes returns an attribute with bytes, for example an address.
func Bytes(kind uint16, data []byte) []byte { return attribute(kind, data) }

func attribute(kind uint16, data []byte) []byte {
	a := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(data))) //nolint:gosec // names and numbers
	a = append(binary.NativeEndian.AppendUint16(a, kind), data...)
	return append(a, make([]byte, align(len(a))-len(a))...)
}

func align(n int) int { return (n + 3) &^ 3 }

// Attributes returns the attributes in data by kind. Of duplicates the last counts; a truncated one is left out.
func Attributes(data []byte) map[uint16][]byte {
	out := map[uint16][]byte{}
	for len(data) >= unix.SizeofNlAttr {
		length := int(binary.NativeEndian.Uint16(data))
		if length < unix.SizeofNlAttr || length > len(data) {
			break
		}
		out[binary.NativeEndian.Uint16(data[2:])&^unix.NLA_F_NESTED] = data[unix.SizeofNlAttr:length]
		data = data[min(len(data), align(length)):]
	}
	return out
}

// Name returns the text of an attribute.
func Name(attribute []byte) string { return strings.TrimRight(string(attribute), "\x00") }

func (r Request) marshal(sequence int) []byte {
	body := slices.Concat(append([][]byte{r.Header}, r.Attributes...)...)
	m := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body))) //nolint:gosec // a few attributes
	m = binary.NativeEndian.AppendUint16(m, r.Kind)
	m = binary.NativeEndian.AppendUint16(m, r.Flags|unix.NLM_F_REQUEST)
	m = binary.NativeEndian.AppendUint32(m, uint32(sequence)) //nolint:gosec // a few requests
	m = binary.NativeEndian.AppendUint32(m, 0)
	return append(m, body...)
}

// Ask sends requests at once and returns the answer to each, in order. It waits until end at most. Each request that is not Silent must
// be one that the kernel answers once: it asks for one object, or has NLM_F_ACK. An error for a Silent one is returned as Ask's
// error.
func Ask(end time.Time, protocol int, requests ...Request) ([]Answer, error) {
	c, err := dial(end, protocol)
	if err != nil {
		return nil, err
	}
	defer c.close()
	var all []byte
	open := map[uint32]bool{}
	for i, r := range requests {
		all = append(all, r.marshal(i)...)
		if !r.Silent {
			open[uint32(i)] = true
		}
	}
	if err := c.send(all); err != nil {
		return nil, err
	}
	answers := make([]Answer, len(requests))
	for len(open) > 0 {
		messages, err := c.receive()
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			body, _, err := take(m)
			if i := m.Header.Seq; open[i] {
				delete(open, i)
				answers[i] = Answer{Body: slices.Clone(body), Err: err}
			} else if err != nil && i < uint32(len(requests)) && requests[i].Silent { //nolint:gosec // a few requests
				return nil, fmt.Errorf("ask the kernel over netlink: %w", err)
			}
		}
	}
	return answers, nil
}

// Dump asks for all objects of a kind and calls f with each, until f returns false or end has come.
func Dump(end time.Time, protocol int, r Request, f func(body []byte) (more bool)) error {
	c, err := dial(end, protocol)
	if err != nil {
		return err
	}
	defer c.close()
	r.Flags |= unix.NLM_F_DUMP
	if err := c.send(r.marshal(0)); err != nil {
		return err
	}
	for {
		messages, err := c.receive()
		if err != nil {
			return err
		}
		for _, m := range messages {
			body, ended, err := take(m)
			if ended || err != nil {
				return err
			}
			if !f(body) {
				return nil
			}
		}
	}
}

// take returns a message's body. ended reports whether it is the last one for its request.
func take(m syscall.NetlinkMessage) (body []byte, ended bool, err error) {
	if m.Header.Type != unix.NLMSG_ERROR && m.Header.Type != unix.NLMSG_DONE {
		return m.Data, false, nil
	}
	if len(m.Data) >= 4 {
		if errno := -int32(binary.NativeEndian.Uint32(m.Data)); errno > 0 { //nolint:gosec // a negative errno
			err = unix.Errno(uint32(errno))
		}
	}
	return nil, true, err
}

// conn is a netlink socket in the namespace of the thread that opened it, connected to the kernel.
type conn struct {
	fd  int
	buf []byte
	end time.Time
}

func dial(end time.Time, protocol int) (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	c := &conn{fd: fd, buf: make([]byte, bufferSize), end: end}
	// Otherwise a process of the pod could send answers to it.
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		c.close()
		return nil, fmt.Errorf("connect netlink socket: %w", err)
	}
	// With strict checking the kernel leaves out routes of other tables. A kernel without it returns more, which is filtered later.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	return c, nil
}

func (c *conn) close() { _ = unix.Close(c.fd) }

func (c *conn) send(data []byte) error {
	if err := unix.Send(c.fd, data, 0); err != nil {
		return fmt.Errorf("ask the kernel over netlink: %w", err)
	}
	return nil
}

func (c *conn) receive() ([]syscall.NetlinkMessage, error) {
	const what = "read the kernel's answer over netlink"
	left := time.Until(c.end)
	if left <= 0 {
		return nil, fmt.Errorf("%s: %w", what, os.ErrDeadlineExceeded)
	}
	limit := unix.NsecToTimeval(max(left, time.Microsecond).Nanoseconds())
	if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
	for errors.Is(err, unix.EINTR) {
		n, _, err = unix.Recvfrom(c.fd, c.buf, 0)
	}
	if errors.Is(err, unix.EAGAIN) {
		err = os.ErrDeadlineExceeded
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	messages, err := syscall.ParseNetlinkMessage(c.buf[:n])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return messages, nil
}
