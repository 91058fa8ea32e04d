package foreign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// Bounds of a look for preempting chains, and of what it returns.
const (
	maxChains    = 4096
	maxPreempted = 10
	maxBehind    = 32
)

// base is a base chain of nf_tables, or a built-in chain of iptables-legacy.
type base struct {
	program      string
	family       byte
	table, chain string // the table with its family
	hook         uint32
	nat          bool
	priority     int32
	rules        uint32
	does         string // what its rules do, or ""
	drops        bool   // by its policy
	shared       bool   // its table has chains of ours
	unread       error
}

// report returns what a chain before ours does, or "".
func (o Ours) report(b base) string {
	switch {
	case b.unread != nil:
		return b.unread.Error()
	case o.allBehind(b):
		return ""
	case b.drops:
		return "drops by its policy"
	}
	return b.does
}

// Preempting returns foreign base chains that see packets before ours and may decide about them by a rule, or by a policy that drops: one line
// each, with what the rule does. It changes nothing. Such a chain is:
//
//   - at hook prerouting or output, up to the priority of our last chain there; of type nat, up to that of our nat chain;
//   - at hook input, up to the priority of our last chain at prerouting, which firewalls (0) are behind;
//   - at hook ingress.
//
// Rules may decide unless they only count, log or accept, set bits of marks that ours do not read, or match nothing that ours decide about: see
// reading. Rules behind our chains count if they send packets elsewhere that ours have redirected.
//
// In a built-in chain of iptables with jumps to ours, foreign rules count if a chain of ours comes later at the hook.
func Preempting(ctx context.Context, ns *netns.NS, o Ours) (lines []string, err error) {
	var found []base
	var undoing []string
	more := false
	err = ns.Inside(func() error {
		end := endOf(ctx)
		around := aroundOf(ns, end)
		o.packets.around = func() surroundings { *o.asked = true; return around() }
		err := rawnetlink.Uninterrupted(func() (err error) {
			found, undoing, more, err = o.nftables(native{ns: ns, end: end})
			return err
		})
		legacy, lines := o.legacy()
		found, undoing = append(found, legacy...), append(undoing, lines...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for chains before ours: %w", err)
	}
	slices.SortStableFunc(found, byPriority)
	for _, b := range found {
		if does := o.report(b); does != "" && len(lines) < maxPreempted {
			where := fmt.Sprintf("%s, table %s, chain %s (%s, priority %d)", b.program, b.table, b.chain, strings.ToLower(hookName(b.hook)), b.priority)
			lines = append(lines, iptables.Printable(where+" "+does))
		}
	}
	for _, line := range undoing[:min(len(undoing), maxPreempted-len(lines))] {
		lines = append(lines, iptables.Printable(line))
	}
	if more {
		lines = append(lines, fmt.Sprintf("nftables: more than %d chains, of which no more were read", maxChains))
	}
	return lines, nil
}

// Dropping returns chains of nf_tables, at any priority, that drop what comes into the pod or goes out of it by their policy; maxPreempted at most, and
// none where that cannot be read. Tables of iptables-legacy are not looked at.
func Dropping(ctx context.Context, ns *netns.NS) (chains []string) {
	conn, err := ns.Netlink(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil
	}
	read := 0
	err = conn.Dump(endOf(ctx), get(unix.NFT_MSG_GETCHAIN, family{number: unix.NFPROTO_UNSPEC}), func(body []byte) bool {
		read++
		if b, ok := baseOf(body); ok && b.drops && (b.hook == hookInput || b.hook == hookOutput) {
			chains = append(chains, iptables.Printable(fmt.Sprintf("%s, table %s, chain %s", b.program, b.table, b.chain)))
		}
		return read < maxChains && len(chains) < maxPreempted
	})
	if err != nil {
		return nil
	}
	return chains
}

// Owned reports whether any nftables table goes with the process that owns it (NFT_TABLE_F_OWNER), or whether that cannot be known.
func Owned(ctx context.Context, ns *netns.NS) (owned bool) {
	err := ns.Inside(func() error {
		conn, err := ns.Netlink(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		read := 0
		return conn.Dump(endOf(ctx), get(unix.NFT_MSG_GETTABLE, family{number: unix.NFPROTO_UNSPEC}), func(body []byte) bool {
			flags := rawnetlink.Attributes(rawnetlink.Object(body))[unix.NFTA_TABLE_FLAGS]
			read++
			owned = rawnetlink.BigEndian(flags)&rawnetlink.TableOwner != 0 || read > maxChains
			return !owned
		})
	})
	return owned || err != nil
}

// nftables returns the base chains of nf_tables before ours, also those of iptables' nft flavour, and lines about tables that undo what ours do.
// more reports whether chains were left unread.
func (o Ours) nftables(n native) (found []base, lines []string, more bool, err error) {
	behind := map[string]byte{} // families of tables
	conn, err := n.ns.Netlink(unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil, false, nil
	}
	if err != nil {
		return nil, nil, false, err
	}
	tables, err := n.ownTables()
	if err != nil {
		return nil, nil, false, err
	}
	read, own, shared := 0, iptables.RestoreChainNames(), map[string]bool{}
	err = conn.Dump(n.end, get(unix.NFT_MSG_GETCHAIN, family{number: unix.NFPROTO_UNSPEC}), func(body []byte) bool {
		read++
		more = read > maxChains
		b, ok := baseOf(body)
		switch {
		case !ok || slices.Contains(tables, b.table):
		case o.before(b):
			found = append(found, b)
		case b.rules > 0 && len(behind) <= maxBehind:
			behind[b.table] = body[0]
		}
		if slices.Contains(own, b.chain) {
			shared[b.table] = true
		}
		return !more
	})
	for i := range found {
		found[i].shared = shared[found[i].table]
	}
	if err == nil {
		err = o.readRules(conn, n.end, found)
	}
	if err == nil {
		lines, err = o.undoing(conn, n.end, behind)
	}
	return found, lines, more, err
}

// readRules reads what the rules of chains before ours do, the earliest first, until there is enough to report.
func (o Ours) readRules(conn *rawnetlink.Conn, end time.Time, found []base) (err error) {
	slices.SortStableFunc(found, byPriority)
	r := &rulesReader{conn: conn, end: end, ours: o.packets, seen: map[chainAt]chainRules{}}
	reported := 0
	for i := range found {
		b := &found[i]
		if reported == maxPreempted {
			break
		}
		if !o.allBehind(*b) && !b.drops && b.rules > o.own(*b) {
			r.own = o.chainsIn(b.table)
			_, table, _ := strings.Cut(b.table, " ")
			if b.does, err = r.does(chainAt{family: b.family, table: table, chain: b.chain, out: b.hook == hookOutput}); err != nil {
				return err
			}
		}
		if o.report(*b) != "" {
			reported++
		}
	}
	return nil
}

func byPriority(a, b base) int { return cmp.Compare(a.priority, b.priority) }

// ownTables returns our tables with their family. A table that a process of the pod owns is not ours.
func (n native) ownTables() (own []string, err error) {
	names := []string{iptables.TableName, iptables.SecondTableName}
	var requests []rawnetlink.Request
	for _, name := range names {
		requests = append(requests, get(unix.NFT_MSG_GETTABLE, families()[0], rawnetlink.Text(unix.NFTA_TABLE_NAME, name)))
	}
	answers, err := n.ask(requests...)
	for i, a := range answers {
		if table := a.Object(); table != nil && rawnetlink.BigEndian(table[unix.NFTA_TABLE_FLAGS])&rawnetlink.TableOwner == 0 {
			own = append(own, "inet "+names[i])
		}
	}
	return own, err
}

// baseOf reads a chain. ok reports whether it is a base chain of a family that counts.
func baseOf(body []byte) (b base, ok bool) {
	if len(body) < rawnetlink.SizeofNfgenmsg {
		return b, false
	}
	family := familyNames()[body[0]]
	a := rawnetlink.Attributes(rawnetlink.Object(body))
	b = base{
		program: "nftables", family: body[0], table: family + " " + rawnetlink.Name(a[unix.NFTA_CHAIN_TABLE]), chain: rawnetlink.Name(a[unix.NFTA_CHAIN_NAME]),
		nat:   rawnetlink.Name(a[unix.NFTA_CHAIN_TYPE]) == "nat",
		drops: len(a[unix.NFTA_CHAIN_POLICY]) == 4 && rawnetlink.BigEndian(a[unix.NFTA_CHAIN_POLICY]) == 0,
		rules: rawnetlink.BigEndian(a[unix.NFTA_CHAIN_USE]), // nothing else uses a base chain
	}
	hook := rawnetlink.Attributes(a[unix.NFTA_CHAIN_HOOK])
	number, priority := hook[unix.NFTA_HOOK_HOOKNUM], hook[unix.NFTA_HOOK_PRIORITY]
	b.hook, b.priority = rawnetlink.BigEndian(number), int32(rawnetlink.BigEndian(priority))
	if family == "netdev" {
		b.hook += hookIngress // which is its first hook; the second is egress
	}
	return b, family != "" && len(number) == 4 && len(priority) == 4
}

// legacy returns the built-in chains of iptables-legacy before ours, and lines about other tables that undo what ours do.
func (o Ours) legacy() (found []base, lines []string) {
	for t, err := range legacyTables() {
		if err != nil && !errors.Is(err, errTable) {
			continue
		}
		before := o.legacyBefore(t, err)
		found = append(found, before...)
		switch where := "legacy iptables, table " + t.place(); {
		case slices.ContainsFunc(before, func(b base) bool { return o.report(b) != "" }):
		case err != nil:
			lines = append(lines, where+" "+err.Error())
		case t.undoes(o.chainsIn(t.place())):
			lines = append(lines, where+" sends packets elsewhere behind our rules")
		}
	}
	return found, lines
}

// legacyBefore returns the built-in chains of a table before ours. err says why it could not be read.
func (o Ours) legacyBefore(t legacyTable, err error) (found []base) {
	priority, ok := tablePriorities()[t.name]
	if !ok {
		return nil
	}
	reached := sync.OnceValue(t.reached)
	shared := len(o.jumps) > 0 && slices.ContainsFunc(iptables.RestoreChainNames(), func(name string) bool { return reached()[name] })
	rules := t.rulesOf(o.packets, o.chainsIn(t.place()))
	for _, hook := range []uint32{hookPrerouting, hookInput, hookOutput} {
		b := base{
			program: "legacy iptables", table: t.place(), chain: hookName(hook), hook: hook, nat: t.name == "nat",
			priority: priority, shared: shared, unread: err, drops: t.dropsByPolicy(hook),
		}
		if o.before(b) && !o.allBehind(b) {
			b.does = rules.does(hook)
		}
		if o.before(b) {
			found = append(found, b)
		}
	}
	return found
}
