package foreign

import (
	"strings"

	"istio-pod-network-controller/iptables"
)

// The numbers of hooks (NF_INET_PRE_ROUTING and so on).
const (
	hookPrerouting = 0
	hookInput      = 1
	hookOutput     = 3
	hookIngress    = 5
)

// hookName returns the name of a hook as iptables has it, or "" for a hook that no packet passes before our chains.
func hookName(hook uint32) string {
	return map[uint32]string{hookPrerouting: "PREROUTING", hookInput: "INPUT", hookOutput: "OUTPUT", hookIngress: "INGRESS"}[hook]
}

// natHook is the priority at which the kernel runs all chains of type nat, whatever their own priority (NF_IP_PRI_NAT_DST). Among each
// other they run in the order of their priorities.
const natHook = -100

// tablePriorities returns the priorities of the tables of iptables that packets may pass before our chains.
func tablePriorities() map[string]int32 {
	return map[string]int32{"raw": -300, "mangle": -150, "nat": -100}
}

// Ours are the places of our own chains.
type Ours struct {
	nat     map[uint32]int32  // by hook, the priority of our nat chain
	last    map[uint32]int32  // by hook, the priority of our last chain
	jumps   map[string]uint32 // by built-in chain of iptables, such as "ip nat OUTPUT", the number of jumps to ours
	packets packets
	asked   *bool // whether a look has asked for the namespace's addresses and devices
}

// LookedAround reports whether Preempting has let rules pass by the addresses and devices of a namespace, which change without any count.
func (o Ours) LookedAround() bool { return *o.asked }

// OursOf returns the places of a Ruleset's chains. With inIptables they are at the heads of iptables' own chains.
func OursOf(want iptables.Ruleset, inIptables bool) Ours {
	o := Ours{nat: map[uint32]int32{}, last: map[uint32]int32{}, jumps: map[string]uint32{}, packets: packetsOf(want), asked: new(bool)}
	hooks := map[string]uint32{hookName(hookPrerouting): hookPrerouting, hookName(hookOutput): hookOutput}
	if !inIptables {
		for _, c := range want.Chains {
			if c.Hook == "" {
				continue
			}
			o.add(hooks[strings.ToUpper(string(c.Hook))], c.Type == iptables.NAT, c.Priority)
		}
		return o
	}
	for family, name := range map[uint32]string{iptables.IPv4: "ip", iptables.IPv6: "ip6"} {
		table := ""
		for line := range strings.Lines(want.RestoreText(family)) {
			if line[0] == '*' {
				table = strings.TrimSpace(line[1:])
			} else if words := strings.Fields(line); words[0] == "-I" {
				o.add(hooks[words[1]], table == "nat", tablePriorities()[table])
				o.jumps[name+" "+table+" "+words[1]]++
			}
		}
	}
	return o
}

// chainsIn returns the names that chains of ours have in a table of iptables, such as "ip nat".
func (o Ours) chainsIn(table string) []string {
	for place := range o.jumps {
		if strings.HasPrefix(place, table+" ") {
			return iptables.RestoreChainNames()
		}
	}
	return nil
}

// add adds the place of one chain.
func (o Ours) add(hook uint32, nat bool, priority int32) {
	if nat {
		o.nat[hook], priority = priority, natHook
	}
	if last, ok := o.last[hook]; !ok || priority > last {
		o.last[hook] = priority
	}
}

// before reports whether a chain sees packets before the last of ours. Among equal priorities the newest chain comes first, and nobody
// knows which is newer: an equal priority counts as before.
func (o Ours) before(b base) bool {
	limit, ok := o.last[b.hook]
	switch {
	case b.hook == hookIngress:
		_, ok = o.last[hookPrerouting]
		return ok
	case b.nat:
		limit, ok = o.nat[b.hook]
	case b.hook == hookInput:
		limit, ok = o.last[hookPrerouting]
	}
	return ok && b.priority <= limit
}

// own returns how many rules of a chain are jumps to ours.
func (o Ours) own(b base) uint32 {
	if !b.shared {
		return 0
	}
	return o.jumps[b.table+" "+b.chain]
}

// allBehind reports whether all rules of a chain come after all of our chains: they are behind our jump.
func (o Ours) allBehind(b base) bool { return o.own(b) > 0 && b.priority >= o.last[b.hook] }
