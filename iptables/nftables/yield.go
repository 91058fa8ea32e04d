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
	err = b.in(ctx, path, func(_ *netns.NS, conn *nft.Conn) error {
		removed, err = deleteTable(conn)
		return err
	})
	return removed, err
}

// deleteTable deletes our table and tells whether there was one.
func deleteTable(conn *nft.Conn) (deleted bool, err error) {
	have, err := ownTable(conn)
	if err != nil || have == nil {
		return false, err
	}
	conn.DelTable(have)
	if err := conn.Flush(); err != nil {
		return false, fmt.Errorf("delete table %s: %w", iptables.TableName, err)
	}
	return true, nil
}
