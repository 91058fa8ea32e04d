package rawnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// answerSize is more than the kernel sends in one datagram to a reader with a small buffer (NLMSG_GOODSIZE).
	answerSize = 1<<13 + 1
	// dumpSize is more than the kernel sends in one datagram of a dump (netlink_dump).
	dumpSize = 1<<15 + 1
	// shortDump is how many short datagrams are read before there is room for long ones.
	shortDump = 4
)

// Conn is a netlink socket in the namespace of the thread that opened it, connected to the kernel. It is for one thread in that
// namespace.
type Conn struct {
	fd, protocol int
	former       []int // sockets with an answer that nobody wants
	sequence     uint32
	unread       bool // the last dump was not read to its end
	buf          []byte
}

// buffers are the buffers of Conns that are closed.
var buffers = sync.Pool{New: func() any { return new([answerSize]byte) }}

// Open opens a Conn in the namespace of the calling thread.
func Open(protocol int) (*Conn, error) {
	c := &Conn{fd: -1, protocol: protocol}
	if err := c.reopen(); err != nil {
		return nil, err
	}
	c.buf = buffers.Get().(*[answerSize]byte)[:]
	return c, nil
}

// reopen opens another socket. The former one is closed with the Conn: to close a netfilter socket may take long.
func (c *Conn) reopen() (err error) {
	if c.fd >= 0 {
		c.former = append(c.former, c.fd)
	}
	if c.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, c.protocol); err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	c.unread = false
	// Otherwise a process of the pod could send answers to it.
	if err := unix.Connect(c.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		err = fmt.Errorf("connect netlink socket: %w", err)
		_ = unix.Close(c.fd)
		c.fd = -1
		return err
	}
	// An error need not come with the message that it is about, which may be longer than what is read at once. Kernels before 4.3 do so.
	_ = unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	if c.protocol == unix.NETLINK_ROUTE {
		// With strict checking the kernel leaves out routes of other tables. A kernel without it returns more, which is filtered later.
		_ = unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	}
	return nil
}

// Close closes the socket. A second call does nothing.
func (c *Conn) Close() {
	for _, fd := range append(c.former, c.fd) {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	c.fd, c.former = -1, nil
	if len(c.buf) == answerSize {
		buffers.Put((*[answerSize]byte)(c.buf))
	}
	c.buf = nil
}

// SetBuffers makes room in the kernel for long messages, in bytes, beyond the system's limits. The memory is not reserved.
func (c *Conn) SetBuffers(send, receive int) error {
	err := errors.Join(
		unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, send), unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receive),
	)
	if err != nil {
		return fmt.Errorf("set the netlink socket's buffers: %w", err)
	}
	return nil
}

// Fd returns the socket's descriptor. It is valid until the next call of another method.
func (c *Conn) Fd() int { return c.fd }

// next returns the number of the next message.
func (c *Conn) next() uint32 {
	c.sequence++
	return c.sequence - 1
}

func (c *Conn) send(data []byte) error {
	if c.unread {
		if err := c.reopen(); err != nil {
			return err
		}
	}
	if err := unix.Send(c.fd, data, 0); err != nil {
		return fmt.Errorf("ask the kernel over netlink: %w", err)
	}
	return nil
}

// receive returns the messages of one datagram, which are valid until the next call.
func (c *Conn) receive(end time.Time) (iter.Seq[message], error) {
	n, err := c.read(end)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's answer over netlink: %w", err)
	}
	datagram := c.buf[:n]
	for left := datagram; len(left) > 0; {
		size, ok := sizeOf(left)
		if !ok {
			return nil, errors.New("read the kernel's answer over netlink: a message has a wrong length")
		}
		left = left[min(len(left), align(size)):]
	}
	return func(yield func(message) bool) {
		for left := datagram; len(left) > 0; {
			size, _ := sizeOf(left)
			m := message{
				kind: binary.NativeEndian.Uint16(left[4:]), flags: binary.NativeEndian.Uint16(left[6:]), sequence: binary.NativeEndian.Uint32(left[8:]), data: left[unix.SizeofNlMsghdr:size],
			}
			if !yield(m) {
				return
			}
			left = left[min(len(left), align(size)):]
		}
	}, nil
}

// receiveNext is receive for a dump, which the kernel goes on with at each call, and not after end.
func (c *Conn) receiveNext(end time.Time) (iter.Seq[message], error) {
	if time.Until(end) <= 0 {
		return nil, fmt.Errorf("read the kernel's objects over netlink: %w", os.ErrDeadlineExceeded)
	}
	return c.receive(end)
}

// sizeOf returns the size of the first message in b. ok is false if it is not whole.
func sizeOf(b []byte) (size int, ok bool) {
	if len(b) < unix.SizeofNlMsghdr {
		return 0, false
	}
	n := uint64(binary.NativeEndian.Uint32(b))
	return int(n), n >= unix.SizeofNlMsghdr && n <= uint64(len(b))
}

// read reads one datagram. The kernel answers most requests while they are sent, so an answer is read even if sending took all the time, and it is
// waited for only if nothing is there.
func (c *Conn) read(end time.Time) (int, error) {
	n, err := ignoringEINTR(func() (int, error) { return unix.Read(c.fd, c.buf) })
	if errors.Is(err, unix.EAGAIN) {
		if err := c.wait(time.Until(end)); err != nil {
			return 0, err
		}
		n, err = ignoringEINTR(func() (int, error) { return unix.Read(c.fd, c.buf) })
	}
	if err == nil && n == len(c.buf) {
		return 0, errors.New("a datagram is longer than any of the kernel's") // its end is lost
	}
	return n, err
}

// wait waits until the socket has something to read.
func (c *Conn) wait(left time.Duration) error {
	if left <= 0 {
		return os.ErrDeadlineExceeded
	}
	limit := int(left/time.Millisecond) + 1
	n, err := ignoringEINTR(func() (int, error) {
		return unix.Poll([]unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}, limit)
	})
	if err == nil && n == 0 {
		return os.ErrDeadlineExceeded
	}
	return err
}

func ignoringEINTR(call func() (int, error)) (n int, err error) {
	for {
		if n, err = call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// Grow makes room for the long datagrams of a long dump. The kernel sends none that is longer than what was last read with, and ends a
// dump without an error at an object that does not fit into a datagram.
func (c *Conn) Grow() {
	if len(c.buf) < dumpSize {
		c.buf = make([]byte, dumpSize)
	}
}
