package upstream

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// source is where connections come from instead of the proxy's own address.
type source struct {
	address netip.Addr
	mark    uint32 // of their packets
}

type sourceKey struct{}

// From has connections come from an address that is not the proxy's, with a mark on their packets.
func From(ctx context.Context, address netip.Addr, mark uint32) context.Context {
	return context.WithValue(ctx, sourceKey{}, source{address.Unmap(), mark})
}

func sourceOf(ctx context.Context) (source, bool) {
	s, is := ctx.Value(sourceKey{}).(source)
	return s, is
}

func (s source) control(_, address string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = errors.Join(Transparent(int(fd), address), unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(s.mark)))
	})
	return errors.Join(err, failed)
}

// Transparent lets a socket have addresses that are not of this host. Its own address, or that of the other end, says of which family it is.
func Transparent(fd int, address string) error {
	if strings.HasPrefix(address, "[") {
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
}
