package nftables

import (
	"context"
	"fmt"

	nft "github.com/google/nftables"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
)

// Yield removes only the rules, and reports whether there were any. Addresses and routes stay: the backend that has taken over needs
// them.
func (b *Backend) Yield(ctx context.Context, path string) (removed bool, err error) {
	return visit(ctx, b, path, deleteTable)
}

// deleteTable deletes our table and reports whether there was one.
func deleteTable(ctx context.Context, ns *netns.NS, s *socket) (deleted bool, err error) {
	err = ns.Alone(ctx, func() (none bool, err error) {
		o, err := s.outline(ctx)
		if o.flags()&tableFlagOwner != 0 {
			return false, fmt.Errorf("table inet %s: %w", iptables.TableName, ErrOwned)
		}
		return !o.exists(), err
	}, func() error {
		err := transact(ctx, ns, func(c *nft.Conn) error {
			c.DelTable(ownTable())
			return c.Flush()
		})
		if err = absent(err); err != nil {
			return fmt.Errorf("delete table %s: %w", iptables.TableName, err)
		}
		deleted = true
		return nil
	})
	return deleted, err
}
