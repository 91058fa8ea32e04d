package nftables

import (
	"context"
	"errors"
	"fmt"
	"time"

	nft "github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

const (
	// maxTransaction bounds a transaction: tens of thousands of elements take a few MB. The kernel does not reserve the memory.
	maxTransaction = 64 << 20
	// maxAnswers has room for an error for each message of a transaction.
	maxAnswers = 8 << 20
)

// transact calls f with a socket inside the namespace to write with, and closes it: an open socket would keep the namespace of a
// deleted pod alive. Closing waits until no packet uses what f has deleted.
func transact(ctx context.Context, ns *netns.NS, f func(*nft.Conn) error) (err error) {
	deadline, _ := ctx.Deadline()
	var conn *nft.Conn
	err = ns.Inside(func() (err error) {
		conn, err = nft.New(nft.AsLasting(), nft.WithSockOptions(func(c *netlink.Conn) error {
			return errors.Join(c.SetWriteBuffer(maxTransaction), c.SetReadBuffer(maxAnswers), c.SetDeadline(deadline), toKernel(c))
		}))
		return err
	})
	if err != nil {
		return fmt.Errorf("open nftables socket: %w", err)
	}
	defer func() { err = errors.Join(err, conn.CloseLasting()) }()
	return f(conn)
}

// toKernel connects a socket to the kernel. Otherwise a process of the pod could send answers to it.
func toKernel(c *netlink.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.Connect(int(fd), &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) })
	return errors.Join(err, failed)
}

// ownTable is our table in messages.
func ownTable() *nft.Table { return &nft.Table{Family: nft.TableFamilyINet, Name: iptables.TableName} }

// absent returns nil for an error that only says that there was nothing to delete.
func absent(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// attempts is how often a transaction is tried that fails because somebody else changes the rules at the same time.
const attempts = 5

// insist calls try again while it fails because of somebody else's changes.
func insist(ctx context.Context, try func() error) (err error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range attempts {
		err = try()
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EBUSY) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
	return err
}
