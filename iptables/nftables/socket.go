package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
)

const (
	// sizeofNfgenmsg is the size of the header in front of the attributes (struct nfgenmsg).
	sizeofNfgenmsg = 4
	// bufferSize holds one part of a dump: the kernel sends 32 KiB at most (netlink_dump).
	bufferSize = 1 << 16
	// answerSize holds a single answer (NLMSG_GOODSIZE).
	answerSize = 1 << 13
	// answerSeconds is how long to wait for an answer. The kernel has it ready when it has taken the request.
	answerSeconds = 1
)

// errTooMuch ends the reading when there is more than our own rules could be.
var errTooMuch = errors.New("there is more than was asked for")

// socket reads a namespace's nftables. Answers are read part by part, and only as far as the caller needs: the rest is never
// taken from the kernel. The socket is connected to the kernel, so that no process of the pod can send to it. It is closed with ns.
type socket struct {
	ns     *netns.NS
	fd     int
	seq    uint32
	unread bool // the last answer was not read to its end
	buffer []byte
}

func dial(ns *netns.NS) (*socket, error) {
	s := &socket{ns: ns, fd: -1, buffer: make([]byte, answerSize)}
	return s, s.reopen()
}

func (s *socket) reopen() error {
	fd, err := s.ns.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open nftables socket: %w", err)
	}
	s.ns.AtClose(func() { _ = unix.Close(fd) })
	s.fd, s.unread = fd, false
	err = errors.Join(
		unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerSeconds}),
	)
	if err != nil {
		return fmt.Errorf("connect nftables socket: %w", err)
	}
	return nil
}

// request is a request for the family of our table.
type request struct {
	kind  uint16 // unix.NFT_MSG_GET...
	flags uint16
	attrs []byte
}

func (s *socket) send(ctx context.Context, requests []request) (first uint32, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if s.unread {
		if err := s.reopen(); err != nil {
			return 0, err
		}
	}
	var out []byte
	first = s.seq
	for _, r := range requests {
		out = binary.NativeEndian.AppendUint32(out, uint32(unix.SizeofNlMsghdr+sizeofNfgenmsg+len(r.attrs))) //nolint:gosec // short
		out = binary.NativeEndian.AppendUint16(out, unix.NFNL_SUBSYS_NFTABLES<<8|r.kind)
		out = binary.NativeEndian.AppendUint16(out, unix.NLM_F_REQUEST|r.flags)
		out = binary.NativeEndian.AppendUint32(out, s.seq)
		out = append(out, 0, 0, 0, 0, unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0)
		out = append(out, r.attrs...)
		s.seq++
	}
	if err := unix.Send(s.fd, out, 0); err != nil {
		return 0, fmt.Errorf("ask for nftables: %w", err)
	}
	return first, nil
}

// ask sends requests that have one answer each, and returns the answers' attributes in order; nil for an object that does not exist.
func (s *socket) ask(ctx context.Context, requests ...request) ([][]byte, error) {
	first, err := s.send(ctx, requests)
	if err != nil {
		return nil, err
	}
	out := make([][]byte, len(requests))
	s.unread = true
	for missing := len(requests); missing > 0; {
		err := s.receive(ctx, func(m message) error {
			i := m.seq - first
			if i >= uint32(len(requests)) { //nolint:gosec // a handful
				return nil
			}
			missing--
			if err := m.failure(); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			} else if err == nil {
				out[i] = append([]byte{}, m.attrs()...)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	s.unread = false
	return out, nil
}

// list calls visit with the attributes of each message of a dump; visit must not keep them. An error of visit ends the dump.
func (s *socket) list(ctx context.Context, kind uint16, attrs []byte, visit func([]byte) error) error {
	if _, err := s.send(ctx, []request{{kind: kind, flags: unix.NLM_F_DUMP, attrs: attrs}}); err != nil {
		return err
	}
	s.unread = true
	if len(s.buffer) < bufferSize {
		s.buffer = make([]byte, bufferSize)
	}
	for done := false; !done; {
		err := s.receive(ctx, func(m message) error {
			if m.flags&unix.NLM_F_DUMP_INTR != 0 {
				return rawnetlink.ErrInterrupted
			}
			if err := m.failure(); err != nil {
				return err
			}
			if done = m.kind == unix.NLMSG_DONE; done {
				return nil
			}
			return visit(m.attrs())
		})
		if err != nil {
			return err
		}
	}
	s.unread = false
	return nil
}

// message is one netlink message of an answer.
type message struct {
	kind, flags uint16
	seq         uint32
	data        []byte
}

// attrs returns a message's attributes.
func (m message) attrs() []byte { return m.data[min(len(m.data), sizeofNfgenmsg):] }

// failure returns the error that a message carries, or nil.
func (m message) failure() error {
	if m.kind != unix.NLMSG_ERROR && m.kind != unix.NLMSG_DONE || len(m.data) < 4 {
		return nil
	}
	if number := int32(binary.NativeEndian.Uint32(m.data)); number < 0 { //nolint:gosec // the kernel's own negative number
		return unix.Errno(-number)
	}
	return nil
}

// receive reads one part of an answer and calls visit with each of its messages.
func (s *socket) receive(ctx context.Context, visit func(message) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	n, _, err := unix.Recvfrom(s.fd, s.buffer, unix.MSG_TRUNC)
	for errors.Is(err, unix.EINTR) {
		n, _, err = unix.Recvfrom(s.fd, s.buffer, unix.MSG_TRUNC)
	}
	if err != nil {
		return fmt.Errorf("read nftables: %w", err)
	}
	if n > len(s.buffer) {
		return errTooMuch
	}
	return readMessages(s.buffer[:n], visit)
}

// readMessages calls visit with each message in b.
func readMessages(b []byte, visit func(message) error) error {
	for len(b) >= unix.SizeofNlMsghdr {
		size := uint64(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > uint64(len(b)) {
			return errors.New("read nftables: a message of the kernel has a wrong length")
		}
		m := message{
			kind: binary.NativeEndian.Uint16(b[4:]), flags: binary.NativeEndian.Uint16(b[6:]), seq: binary.NativeEndian.Uint32(b[8:]),
			data: b[unix.SizeofNlMsghdr:size],
		}
		if err := visit(m); err != nil {
			return err
		}
		b = b[min(uint64(len(b)), (size+3)&^3):]
	}
	return nil
}
