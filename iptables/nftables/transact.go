package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
)

const (
	// usualSize is how much fits into a socket's buffers as they are: less than the kernel's smallest default (net.core.wmem_default).
	usualSize = 100 << 10
	// maxAnswers has room for an error for each message of a transaction.
	maxAnswers = 8 << 20
)

// transaction is the messages of one transaction, without the begin and end of its batch.
type transaction []rawnetlink.Request

// commit makes the transaction inside the namespace, on a socket of its own: closing it waits until no packet uses what was deleted.
func (t transaction) commit(ctx context.Context, ns *netns.NS) error {
	if err := ctx.Err(); err != nil {
		return err // the caller may have said already that nothing was changed
	}
	edge := func(kind uint16) rawnetlink.Request {
		return rawnetlink.Request{Kind: kind, Header: binary.BigEndian.AppendUint16([]byte{0, unix.NFNETLINK_V0}, unix.NFNL_SUBSYS_NFTABLES), Silent: true}
	}
	asked := slices.Concat(transaction{edge(unix.NFNL_MSG_BATCH_BEGIN)}, t, transaction{edge(unix.NFNL_MSG_BATCH_END)})
	last := &asked[len(t)] // all are answered together
	last.Silent, last.Flags = false, last.Flags|unix.NLM_F_ACK
	return ns.Inside(func() error {
		conn, err := rawnetlink.Open(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer conn.Close()
		if size := t.size(); size > usualSize {
			if err := conn.SetBuffers(2*size, maxAnswers); err != nil {
				return err
			}
		}
		answers, err := conn.Ask(end(ctx), asked...)
		for _, a := range answers {
			err = errors.Join(err, a.Err)
		}
		return err
	})
}

// size returns about how many bytes are sent.
func (t transaction) size() (size int) {
	for _, r := range t {
		size += unix.SizeofNlMsghdr + sizeofNfgenmsg
		for _, a := range r.Attributes {
			size += len(a)
		}
	}
	return size
}

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
