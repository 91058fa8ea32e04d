package nftables

import (
	"context"
	"fmt"

	nft "github.com/google/nftables"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// Yield takes away the rules alone and tells whether there were any: addresses and routes are those of the backend that has
// taken over.
func (b *Backend) Yield(ctx context.Context, path string) (removed bool, err error) {
	err = b.in(ctx, path, func(ns *netns.NS, conn *nft.Conn) error {
		removed, err = deleteTable(ctx, ns, conn)
		return err
	})
	return removed, err
}

// deleteTable deletes our table and tells whether there was one.
func deleteTable(ctx context.Context, ns *netns.NS, conn *nft.Conn) (deleted bool, err error) {
	var have *nft.Table
	err = ns.Alone(ctx, func() (none bool, err error) {
		have, err = ownTable(conn)
		return have == nil, err
	}, func() error {
		conn.DelTable(have)
		if err := conn.Flush(); err != nil {
			return fmt.Errorf("delete table %s: %w", iptables.TableName, err)
		}
		deleted = true
		return nil
	})
	return deleted, err
}
