package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
)

const (
	// answerTime is how long to wait for the kernel if the caller sets no limit. Its answer is ready when it has taken the request.
	answerTime = time.Minute
)

// errTooMuch ends the reading when there is more than our own rules could be.
var errTooMuch = errors.New("there is more than was asked for")

// end returns until when to wait for the kernel.
func end(ctx context.Context) time.Time {
	if end, ok := ctx.Deadline(); ok {
		return end
	}
	return time.Now().Add(answerTime)
}

// get is a request for the family of our table.
func get(kind uint16, attributes ...[]byte) rawnetlink.Request {
	return rawnetlink.Nftables(kind, unix.NFPROTO_INET, attributes...)
}

// ask sends requests that have one answer each, and returns the answers' attributes in order; nil for an object that does not exist.
func ask(ctx context.Context, ns *netns.NS, requests ...rawnetlink.Request) (out [][]byte, err error) {
	err = with(ctx, ns, func(conn *rawnetlink.Conn) error {
		answers, err := conn.Ask(end(ctx), requests...)
		out = make([][]byte, len(answers))
		for i, a := range answers {
			if a.Err == nil {
				out[i] = rawnetlink.Object(a.Body)
			} else if !errors.Is(a.Err, unix.ENOENT) {
				err = errors.Join(err, a.Err)
			}
		}
		return err
	})
	return out, err
}

// list calls visit with the attributes of each message of a dump; visit must not keep them. An error of visit ends the dump: the rest is never
// taken from the kernel.
func list(ctx context.Context, ns *netns.NS, r rawnetlink.Request, visit func([]byte) error) error {
	return with(ctx, ns, func(conn *rawnetlink.Conn) error {
		conn.Grow()
		var stop error
		err := conn.Dump(end(ctx), r, func(body []byte) bool {
			stop = visit(rawnetlink.Object(body))
			return stop == nil
		})
		return errors.Join(err, stop)
	})
}

// with calls f, on a thread inside, with the namespace's connection, unless the caller's time is over.
func with(ctx context.Context, ns *netns.NS, f func(*rawnetlink.Conn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return ns.Inside(func() error {
		conn, err := ns.Netlink(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		return f(conn)
	})
}

// timedOut returns an error if the caller's time is over, and nil if err is about the table. A table that changes
// while it is read cannot be read.
func timedOut(ctx context.Context, err error) error {
	if ctx.Err() == nil && errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, rawnetlink.ErrInterrupted) {
		return fmt.Errorf("read nftables: %w", err)
	}
	return ctx.Err()
}

// find returns the data of the first attribute of a kind, or nil. It accepts any bytes, since a pod may have written them.
func find(b []byte, kind uint16) []byte {
	for k, data := range rawnetlink.Each(b) {
		if k == kind {
			return data
		}
	}
	return nil
}

// wide reads a number of eight bytes; 0 if there are not as many.
func wide(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}
