package parking

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables/kernel"
)

// look is the time between two looks for the proxy's listener while connections wait.
const look = 15 * time.Millisecond

// spot is a listener in the stead of a proxy's.
type spot struct {
	port uint16

	once sync.Once
	file *os.File
	// waiting is how many connections were in its queue when it closed.
	waiting uint64
}

// close closes the listener: what waits goes to the proxy's, if there is one, and is reset otherwise.
func (s *spot) close() {
	s.once.Do(func() {
		if conn, err := s.file.SyscallConn(); err == nil {
			_ = conn.Control(func(fd uintptr) {
				if info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO); err == nil {
					s.waiting = uint64(info.Unacked) // of a listener, its queue
				}
			})
		}
		_ = s.file.Close()
	})
}

func closeAll(all []*spot) {
	for _, s := range all {
		s.close()
	}
}

func without(all []*spot, s *spot) []*spot {
	return slices.DeleteFunc(slices.Clone(all), func(other *spot) bool { return other == s })
}

// wait returns once the listener is closed: by another call of close, because the proxy listens, or at a time. It looks for the proxy while connections
// wait, and sleeps until the first one comes. A look that fails is done again: what waits must not be reset for it. came reports whether the proxy
// listens.
func (s *spot) wait(ctx context.Context, until time.Time, listens func(context.Context) (bool, error)) (came bool, waiting uint64) {
	defer func() { s.close(); waiting = s.waiting }()
	if err := s.file.SetReadDeadline(until); err != nil {
		return false, 0
	}
	conn, err := s.file.SyscallConn()
	if err != nil {
		return false, 0
	}
	err = conn.Read(func(fd uintptr) (done bool) { return !isEmpty(int(fd)) })
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	for err == nil {
		if came, _ = listens(ctx); came || !jitter.Wait(ctx, look) {
			return came, 0
		}
		err = conn.Control(func(uintptr) {}) // fails once it is closed
	}
	return false, 0
}

// isEmpty reports whether no connection waits.
func isEmpty(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return n == 0 || errors.Is(err, syscall.EINTR)
}

// isSucceeded reports whether somebody else listens on the port. Of several agents each parks for itself.
func (s *spot) isSucceeded(ctx context.Context, ns *netns.NS) (came bool, err error) {
	err = kernel.EachListener(ctx, ns, func(l kernel.Socket) (more bool) {
		came = came || l.Port == s.port
		return !came
	})
	return came, err
}
