package rawnetlink

import (
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// forgedMessage returns a message as the kernel would send it.
func forgedMessage(kind, flags uint16, sequence uint32, body []byte) []byte {
	m := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, flags)
	m = binary.NativeEndian.AppendUint32(m, sequence)
	m = binary.NativeEndian.AppendUint32(m, 0)
	return append(append(m, body...), make([]byte, align(len(body))-len(body))...)
}

// Whatever comes as an answer, in whatever pieces, ends in time, and no more of it is passed on than came.
func FuzzAnswers(f *testing.F) {
	done, refused := forgedMessage(unix.NLMSG_DONE, 0, 0, make([]byte, 4)), forgedMessage(unix.NLMSG_ERROR, 0, 1, []byte{0xfe, 0xff, 0xff, 0xff})
	rule := forgedMessage(unix.RTM_NEWRULE, unix.NLM_F_MULTI, 0, append(make([]byte, 12), Number(unix.FRA_TABLE, 133)...))
	f.Add(append(append([]byte{}, rule...), done...), uint16(0), true)
	f.Add(append(append([]byte{}, refused...), forgedMessage(unix.RTM_NEWLINK, 0, 0, Text(unix.IFLA_IFNAME, "lo"))...), uint16(len(refused)), false)
	f.Add(forgedMessage(unix.RTM_NEWRULE, unix.NLM_F_DUMP_INTR, 0, nil), uint16(7), true)
	f.Fuzz(func(t *testing.T, data []byte, at uint16, dump bool) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		c := &Conn{fd: pair[0], protocol: unix.NETLINK_ROUTE, buf: buffers.Get().(*[answerSize]byte)[:]}
		defer c.Close()
		cut := min(int(at), len(data))
		for _, datagram := range [][]byte{data[:cut], data[cut:]} {
			if len(datagram) > 0 {
				_ = unix.Send(pair[1], datagram, unix.MSG_NOSIGNAL)
			}
		}
		requests := []Request{{Kind: unix.RTM_GETRULE, Header: make([]byte, 12)}, {Kind: unix.RTM_NEWRULE, Flags: unix.NLM_F_ACK}}
		if err := unix.Shutdown(pair[1], unix.SHUT_WR); err != nil { // the next read is of an end, which netlink does not have
			t.Fatal(err)
		}
		passed, end := 0, time.Now().Add(2*time.Millisecond)
		if dump {
			_ = c.Dump(end, requests[0], func(body []byte) bool { passed += len(body); return true })
		} else if answers, err := c.Ask(end, requests...); err == nil {
			for _, a := range answers {
				passed += len(a.Body)
			}
		}
		if passed > len(data) {
			t.Errorf("%d bytes were passed on, of %d", passed, len(data))
		}
		_ = unix.Close(pair[1])
	})
}
