package kerneltest

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
)

// InterruptDump puts itself between a netlink socket of ns and the kernel, and marks the first dump as one during which something has changed.
// A reader that opens another socket then has the kernel's own answers. It returns a function that reports whether a dump was marked.
func InterruptDump(t testing.TB, ns *netns.NS, fd, protocol int) (marked func() bool) {
	t.Helper()
	kernel, err := ns.Socket(unix.AF_NETLINK, unix.SOCK_RAW, protocol)
	must(t, err)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	must(t, err)
	var pair [2]int
	must(t, ns.Inside(func() (err error) { // the reader's end has the namespace's cookie
		pair, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	must(t, errors.Join(unix.Dup3(pair[0], fd, unix.O_CLOEXEC), unix.SetNonblock(fd, flags&unix.O_NONBLOCK != 0), unix.Close(pair[0])))
	var interrupted atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		relay(pair[1], kernel, &interrupted)
	}()
	t.Cleanup(func() {
		_ = unix.Shutdown(pair[1], unix.SHUT_RDWR)
		<-done
		must(t, errors.Join(unix.Close(pair[1]), unix.Close(kernel)))
	})
	return interrupted.Load
}

// relay passes datagrams on between a reader and the kernel until the reader has closed its end.
func relay(reader, kernel int, interrupted *atomic.Bool) {
	buf := make([]byte, 1<<16)
	for {
		ready := []unix.PollFd{{Fd: int32(reader), Events: unix.POLLIN}, {Fd: int32(kernel), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil {
			continue // a signal
		}
		if ready[0].Revents != 0 {
			n, err := unix.Read(reader, buf)
			if err != nil || n == 0 {
				return
			}
			_, _ = unix.Write(kernel, buf[:n])
		}
		if ready[1].Revents == 0 {
			continue
		}
		n, err := unix.Read(kernel, buf)
		if err != nil || n < unix.SizeofNlMsghdr {
			continue
		}
		if flags := binary.NativeEndian.Uint16(buf[6:]); flags&unix.NLM_F_MULTI != 0 && !interrupted.Swap(true) {
			binary.NativeEndian.PutUint16(buf[6:], flags|unix.NLM_F_DUMP_INTR)
		}
		_, _ = unix.Write(reader, buf[:n])
	}
}
