package foreign

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// base is a base chain of nf_tables.
type base struct {
	family
	table, name string
	nat         bool
	hook        uint32
	priority    int32
	drops       bool // by its policy
	rules       uint32
}

func (b base) String() string {
	return fmt.Sprintf("nftables table %s %s, chain %s (%s, priority %d)", b.family.name, b.table, b.name, strings.ToLower(hookName(b.hook)), b.priority)
}

// nftables looks into all base chains of others that run before ours, in nf_tables, which also holds the rules of iptables' nft flavour.
func (s *search) nftables() error {
	conn, err := s.ns.Netlink(unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil
	}
	if err != nil {
		return err
	}
	conn.Grow() // otherwise the kernel would end a list at a rule that is longer than its datagrams
	bases, err := s.bases(conn)
	if err != nil {
		return err
	}
	for _, b := range bases {
		seen := map[string]bool{}
		if err := s.chain(conn, b, b.name, seen); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		if b.drops {
			s.add("%s: its policy drops", b)
		}
	}
	return nil
}

// bases returns the base chains of others that run before ours, in the order of their priorities.
func (s *search) bases(conn *rawnetlink.Conn) (out []base, err error) {
	read := 0
	request := get(unix.NFT_MSG_GETCHAIN, family{number: unix.NFPROTO_UNSPEC})
	err = conn.Dump(s.end, request, func(body []byte) bool {
		if b, ok := baseOf(body); ok && s.ours.before(b.hook, b.nat, b.priority) {
			out = append(out, b)
		}
		read++
		return read < maxChains && len(out) < maxRules/16
	})
	if read >= maxChains {
		s.add("nftables: %d chains, of which no more were read", read)
	}
	slices.SortStableFunc(out, func(a, b base) int { return int(a.priority) - int(b.priority) })
	return out, err
}

// baseOf returns a base chain of another table than ours at a hook of ours.
func baseOf(body []byte) (b base, ok bool) {
	if len(body) < sizeofNfgenmsg {
		return b, false
	}
	i := slices.IndexFunc(families(), func(p family) bool { return p.number == body[0] })
	attributes := rawnetlink.Attributes(body[sizeofNfgenmsg:])
	hook := rawnetlink.Attributes(attributes[unix.NFTA_CHAIN_HOOK])
	number, priority := hook[unix.NFTA_HOOK_HOOKNUM], hook[unix.NFTA_HOOK_PRIORITY]
	if i < 0 || len(number) != 4 || len(priority) != 4 {
		return b, false
	}
	b = base{
		family: families()[i], table: rawnetlink.Name(attributes[unix.NFTA_CHAIN_TABLE]), name: rawnetlink.Name(attributes[unix.NFTA_CHAIN_NAME]),
		nat: rawnetlink.Name(attributes[unix.NFTA_CHAIN_TYPE]) == "nat", hook: binary.BigEndian.Uint32(number),
		priority: int32(binary.BigEndian.Uint32(priority)), //nolint:gosec // the kernel's own negative number
		drops:    len(attributes[unix.NFTA_CHAIN_POLICY]) == 4 && bigEndian(attributes[unix.NFTA_CHAIN_POLICY]) == 0,
		rules:    bigEndian(attributes[unix.NFTA_CHAIN_USE]), // nothing else uses a base chain
	}
	return b, b.family.number != unix.NFPROTO_INET || b.table != iptables.TableName
}

// chain looks into one chain that packets reach from a base chain, and into those that it leads to. What follows a jump to ours is not
// looked at if none of ours comes later.
func (s *search) chain(conn *rawnetlink.Conn, b base, name string, seen map[string]bool) error {
	if seen[name] || s.full() {
		return nil
	}
	seen[name] = true
	targets, err := s.list(conn, b, name)
	for _, target := range targets {
		err = errors.Join(err, s.chain(conn, b, target, seen))
	}
	return err
}

// list reads the rules of one chain, and returns the chains that they lead to. If there seems to be no rule, it asks once more: the first
// answer on a socket is short, and the kernel ends a list at a rule that does not fit in.
func (s *search) list(conn *rawnetlink.Conn, b base, name string) (targets []string, err error) {
	request := get(unix.NFT_MSG_GETRULE, b.family, rawnetlink.Text(unix.NFTA_RULE_TABLE, b.table), rawnetlink.Text(unix.NFTA_RULE_CHAIN, name))
	read, whole := uint32(0), true
	for attempt := 0; attempt < 2 && read == 0 && err == nil; attempt++ {
		s.rules += chainCost
		err = conn.Dump(s.end, request, func(body []byte) bool {
			s.rules++
			read++
			if len(body) < sizeofNfgenmsg {
				return true
			}
			r := s.ours.rule(b.family.number, rawnetlink.Attributes(body[sizeofNfgenmsg:])[unix.NFTA_RULE_EXPRESSIONS], b.nat)
			if b.builtIn(name) && s.ours.isOwn(b.table, r.target) {
				whole = !s.ours.areLast(b.hook, b.priority)
				return whole
			}
			if r.decides != "" {
				s.add("%s: rule %d of chain %s %s", b, read, name, r.decides)
			}
			if r.target != "" {
				targets = append(targets, r.target)
			}
			whole = !r.ends && !s.full()
			return whole
		})
	}
	if err == nil && whole && name == b.name && read < b.rules {
		s.add("%s: %d of its rules could not be read", b, b.rules-read)
	}
	return targets, err
}

// builtIn reports whether a chain that is reached from b is a built-in chain of iptables.
func (b base) builtIn(chain string) bool {
	return chain == b.name && b.family.number != unix.NFPROTO_INET && slices.Contains(hooks(), chain)
}

func bigEndian(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
