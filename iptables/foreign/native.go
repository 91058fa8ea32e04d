package foreign

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
)

// limit bounds a look; the caller's context may be shorter. The kernel answers in microseconds.
const limit = 2 * time.Second

// native asks the nf_tables of a namespace, which also hold the rules of iptables' nft flavour. It is for a thread inside it.
type native struct {
	ns  *netns.NS
	end time.Time
}

// nativeOf returns a native whose look ends by the deadline of ctx, and by limit.
func nativeOf(ctx context.Context, ns *netns.NS) native {
	end := time.Now().Add(limit)
	if asked, ok := ctx.Deadline(); ok && asked.Before(end) {
		end = asked
	}
	return native{ns: ns, end: end}
}

// ask returns no answers if the kernel has no nf_tables.
func (n native) ask(requests ...rawnetlink.Request) ([]rawnetlink.Answer, error) {
	conn, err := n.ns.Netlink(unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return conn.Ask(n.end, requests...)
}

// dump calls visit with each object of a kind and family that has the attributes, as long as visit returns true. A missing table or chain has none,
// and neither has a kernel without nf_tables.
func (n native) dump(kind uint16, family byte, visit func(body []byte) bool, attributes ...[]byte) error {
	conn, err := n.ns.Netlink(unix.NETLINK_NETFILTER)
	if err == nil {
		err = conn.Dump(n.end, rawnetlink.Nftables(kind, family, attributes...), visit)
	}
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// nftRule is a rule of nf_tables. size is how long the message is.
type nftRule struct {
	chain       string
	expressions []byte
	size        int
}

// rules calls visit with the rules of a table, or of one of its chains, as long as visit returns true. Some kernels return all rules of the
// table even then.
func (n native) rules(family byte, table, chain string, visit func(nftRule) bool) error {
	attributes := [][]byte{rawnetlink.Text(unix.NFTA_RULE_TABLE, table)}
	if chain != "" {
		attributes = append(attributes, rawnetlink.Text(unix.NFTA_RULE_CHAIN, chain))
	}
	return n.dump(unix.NFT_MSG_GETRULE, family, func(body []byte) bool {
		rule := rawnetlink.Attributes(rawnetlink.Object(body))
		return visit(nftRule{rawnetlink.Name(rule[unix.NFTA_RULE_CHAIN]), rule[unix.NFTA_RULE_EXPRESSIONS], len(body)})
	}, attributes...)
}

func number(b []byte) uint32 { return rawnetlink.BigEndian(b) }

// familyNames returns the names of the families whose chains count.
func familyNames() map[byte]string {
	return map[byte]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_NETDEV: "netdev"}
}

// placeOf returns a table with its family, such as "ip nat".
func placeOf(family byte, table string) string { return familyNames()[family] + " " + table }
