package foreign

import (
	"context"
	"fmt"
	"slices"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// Bounds of a look for rules that decide before ours: more than any project's, in all chains together.
const (
	maxChains    = 4096
	maxPreempted = 10
)

// The numbers of the hooks with our chains (NF_INET_PRE_ROUTING, NF_INET_LOCAL_OUT).
const (
	hookPrerouting = 0
	hookOutput     = 3
)

// natHook is the priority at which the kernel runs all chains of type nat, whatever their own priority (NF_IP_PRI_NAT_DST). Among each
// other they run in the order of their priorities.
const natHook = -100

// Priorities of the tables of x_tables, and of iptables' nft flavour.
const (
	legacyRaw    = -300
	legacyMangle = -150
	legacyNAT    = -100
)

// Ours is what rules of others are compared with.
type Ours struct {
	nat   map[uint32]int32 // priority of our nat chain by hook
	last  map[uint32]int32 // priority at which the last of our chains runs, by hook
	marks bool             // any mark matters (TPROXY)
	udp   bool             // lookups are redirected
	// inIptables means that ours are chains of iptables.
	inIptables bool
}

// OursOf returns the places of a Ruleset's chains. With inIptables they are at the heads of iptables' own chains.
func OursOf(want iptables.Ruleset, inIptables bool) Ours {
	o := Ours{nat: map[uint32]int32{}, last: map[uint32]int32{}, marks: len(want.Routing) > 0, inIptables: inIptables}
	for _, c := range want.Chains {
		hook, priority := uint32(hookPrerouting), c.Priority
		if c.Hook == iptables.Output {
			hook = hookOutput
		}
		if inIptables {
			priority = tablePriority(c)
		}
		if c.Type == iptables.NAT {
			o.nat[hook], priority = priority, natHook
		}
		if last, ok := o.last[hook]; !ok || priority > last {
			o.last[hook] = priority
		}
		o.udp = o.udp || c.Priority <= legacyRaw // the zones of lookups
	}
	return o
}

// tablePriority returns the priority of the table of iptables that a chain of ours is in.
func tablePriority(c iptables.Chain) int32 {
	switch {
	case c.Type == iptables.NAT:
		return legacyNAT
	case c.Priority <= legacyRaw:
		return legacyRaw
	}
	return legacyMangle
}

// isOwn reports whether a jump from a built-in chain of iptables to target is ours. With the nftables backend there is none: a pod can give
// such a name to a chain of its own.
func (o Ours) isOwn(table, target string) bool {
	return o.inIptables && slices.Contains([]string{"raw", "mangle", "nat"}, table) && slices.Contains(iptables.RestoreChainNames(), target)
}

// areLast reports whether all chains of ours at a hook have seen a packet that has passed those at a priority.
func (o Ours) areLast(hook uint32, priority int32) bool { return priority >= o.last[hook] }

// before reports whether a chain of others sees packets before all chains of ours at the hook have. At equal priorities the chain that
// was made last comes first, which cannot be known: it counts as before.
func (o Ours) before(hook uint32, nat bool, priority int32) bool {
	limit, ok := o.last[hook]
	if nat {
		limit, ok = o.nat[hook]
	}
	return ok && priority <= limit
}

// hasProtocol reports whether we redirect packets of a protocol; 0 is any.
func (o Ours) hasProtocol(number uint32) bool {
	return number == 0 || number == iptables.TCP || o.udp && number == iptables.UDP
}

// hasMark reports whether our rules may decide differently because of a packet's mark, of which only the bits in fixed are known.
func (o Ours) hasMark(mark, fixed uint32) bool {
	return o.marks || slices.ContainsFunc(iptables.Marks(), func(own uint32) bool { return (own^mark)&fixed == 0 })
}

// Preempting returns the rules of others that decide about packets before ours do, one line each. Nothing is changed.
//
// Such a rule is in a base chain at the hook of one of our chains, or in a chain that is reached from there, and the base chain runs
// before ours. What decides depends on the type of the base chain:
//
//   - In any: what drops, rejects, queues, copies or rewrites packets, gives them to a socket (tproxy), or sets a mark that our rules
//     match; and what cannot be read.
//   - In a chain of type nat also: what rewrites the destination, since the first nat chain that does ends them all.
//   - In any other also: what takes packets from connection tracking, and so from NAT, or puts them into another zone of it.
//
// A plain accept ends only its own base chain, and decides nothing. Not looked at are rules for protocols that we do not redirect,
// chains of devices (netdev), and conditions: a rule counts even if it matches few packets.
func Preempting(ctx context.Context, ns *netns.NS, o Ours) (lines []string, err error) {
	err = ns.Inside(func() error {
		var s search
		err := rawnetlink.Uninterrupted(func() error {
			s = search{ns: ns, end: endOf(ctx), ours: o}
			return s.nftables()
		})
		if err != nil {
			return err
		}
		s.legacy()
		if s.rules > maxRules {
			s.lines = append(s.lines, fmt.Sprintf("more than %d rules are before ours, of which no more were read", maxRules))
		}
		lines = s.lines
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for rules that decide before ours: %w", err)
	}
	return lines, nil
}

// chainCost is how many rules a chain counts as, since each is a request to the kernel.
const chainCost = 8

// search is one look.
type search struct {
	ns    *netns.NS
	end   time.Time
	ours  Ours
	rules int // read so far
	lines []string
}

// add adds a line about a rule, if there is room and it is a new one.
func (s *search) add(format string, args ...any) {
	line := iptables.Printable(fmt.Sprintf(format, args...))
	if len(s.lines) < maxPreempted && !slices.Contains(s.lines, line) {
		s.lines = append(s.lines, line)
	}
}

// full reports whether nothing more needs to be read.
func (s *search) full() bool { return len(s.lines) >= maxPreempted || s.rules > maxRules }
