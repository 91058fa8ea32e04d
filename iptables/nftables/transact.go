package nftables

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	nft "github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

const (
	// usualSize is how much fits into a socket's buffers as they are: less than the kernel's smallest default (net.core.wmem_default).
	usualSize = 100 << 10
	// maxAnswers has room for an error for each message of a transaction.
	maxAnswers = 8 << 20
)

// transaction is the messages of one transaction, from the begin of its batch to the end.
type transaction []rawnetlink.Request

// record returns the transactions that f makes: one for each Flush. Nothing is sent.
func record(f func(*nft.Conn) error) (out []transaction, err error) {
	conn, err := nft.New(nft.WithTestDial(func(sent []netlink.Message) ([]netlink.Message, error) {
		t := make(transaction, 0, len(sent))
		for _, m := range sent {
			t = append(t, part(m))
		}
		out = append(out, t)
		return nil, io.EOF // there is no answer
	}))
	if err != nil {
		return nil, err
	}
	return out, f(conn)
}

// part returns a message of the library without its requests for an acknowledgement (NLM_F_ACK) and for a copy of the new rule (NLM_F_ECHO).
// The kernel reports errors all the same.
func part(m netlink.Message) rawnetlink.Request {
	return rawnetlink.Request{
		Kind: uint16(m.Header.Type), Flags: uint16(m.Header.Flags &^ (netlink.Acknowledge | netlink.Echo)),
		Header: m.Data[:sizeofNfgenmsg], Attributes: [][]byte{m.Data[sizeofNfgenmsg:]}, Silent: true,
	}
}

// transact makes the transactions of f inside the namespace.
func transact(ctx context.Context, ns *netns.NS, f func(*nft.Conn) error) error {
	all, err := record(f)
	if err != nil {
		return err
	}
	for _, t := range all {
		if err := t.commit(ctx, ns); err != nil {
			return err
		}
	}
	return nil
}

// commit makes the transaction inside the namespace, on a socket of its own: closing it waits until no packet uses what was deleted.
func (t transaction) commit(ctx context.Context, ns *netns.NS) error {
	if err := ctx.Err(); err != nil {
		return err // the caller may have said already that nothing was changed
	}
	asked := slices.Clone(t)
	last := &asked[len(t)-2] // the one before the batch's end; all are answered together
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
		size += unix.SizeofNlMsghdr + sizeofNfgenmsg + len(r.Attributes[0])
	}
	return size
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
