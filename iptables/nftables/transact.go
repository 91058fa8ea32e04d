package nftables

import (
	"context"
	"errors"
	"slices"

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

// batchGeneration is NFNL_BATCH_GENID: the kernel refuses a batch at another generation.
const batchGeneration = 1

// anyGeneration makes a transaction whatever has changed before.
const anyGeneration = 0

// commit makes the transaction inside the namespace, if nothing has changed since a generation of nf_tables.
func (t transaction) commit(ctx context.Context, ns *netns.NS, generation uint32) error {
	return with(ctx, ns, func(conn *rawnetlink.Conn) error {
		if size := t.size(); size > usualSize {
			if err := conn.SetBuffers(2*size, maxAnswers); err != nil {
				return err
			}
		}
		answers, err := conn.Ask(end(ctx), rawnetlink.Batch(t, big(batchGeneration, generation))...)
		for _, a := range answers {
			err = errors.Join(err, a.Err)
		}
		return err
	})
}

// settle waits until no packet uses rules that were deleted: closing a netfilter socket of the namespace does.
func settle(ns *netns.NS) error {
	return ns.Inside(func() error {
		conn, err := rawnetlink.Open(unix.NETLINK_NETFILTER)
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// in returns the transaction for another table. The first attribute of each message names the table.
func (t transaction) in(table string) transaction {
	out := slices.Clone(t)
	for i, r := range out {
		out[i].Attributes = slices.Clone(r.Attributes)
		out[i].Attributes[0] = rawnetlink.Text(unix.NFTA_TABLE_NAME, table)
	}
	return out
}

// size returns about how many bytes are sent.
func (t transaction) size() (size int) {
	for _, r := range t {
		size += r.Size()
	}
	return size
}
