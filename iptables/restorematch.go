package iptables

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxMultiport is how many ports one rule of iptables can name.
const maxMultiport = 15

// restoreMatch is the match of one rule of iptables. iptables-save prints addresses, interfaces and protocol first, then the
// extensions in the order in which they were given.
type restoreMatch struct {
	src, dst, in, out, proto string
	extensions               []string
}

func (m restoreMatch) String() string {
	words := slices.Concat([]string{m.src, m.dst, m.in, m.out, m.proto}, m.extensions)
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
}

func (m restoreMatch) with(extension string) restoreMatch {
	m.extensions = append(slices.Clone(m.extensions), extension)
	return m
}

// restoreMatches renders the conditions for a family: usually as one match, as several if a set has to be listed, or as none if they
// require the other family.
func restoreMatches(sets []Set, conds []Cond, family uint32) []restoreMatch {
	if slices.ContainsFunc(conds, func(c Cond) bool { return c.Field == Family && (c.Num == family) == c.Not }) {
		return nil
	}
	matches := []restoreMatch{{}}
	for i, c := range conds {
		numbers := excepted(conds, c)
		switch {
		case c.Set != "":
			matches = restoreSet(sets, matches, c)
		case len(numbers) < 2:
			matches = each(matches, func(m restoreMatch) []restoreMatch { return []restoreMatch{c.restore(m, protocolOf(conds))} })
		case len(excepted(conds[:i], c)) == 0: // the first such condition stands for all
			matches = each(matches, func(m restoreMatch) []restoreMatch { return c.restoreExcepted(m, numbers) })
		}
	}
	return matches
}

func each(matches []restoreMatch, f func(restoreMatch) []restoreMatch) []restoreMatch {
	var out []restoreMatch
	for _, m := range matches {
		out = append(out, f(m)...)
	}
	return out
}

// excepted returns the ports or owners that conditions like c exclude, sorted.
func excepted(conds []Cond, c Cond) []uint32 {
	var out []uint32
	for _, other := range conds {
		if c.Not && other.Not && other.Field == c.Field && slices.Contains([]Field{DstPort, OwnerUID, OwnerGID}, c.Field) {
			out = append(out, other.Num)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// maxID is the highest user or group ID.
const maxID = 1<<32 - 2

// restoreExcepted renders several numbers that a field must not have. The nft flavour forgets all but the last of two port matches, so
// ports are one match. An owner match takes one range, so the ranges between the numbers are matched, one rule each.
func (c Cond) restoreExcepted(m restoreMatch, numbers []uint32) []restoreMatch {
	if c.Field == DstPort {
		return []restoreMatch{m.with("-m multiport ! --dports " + joined(numbers, ","))}
	}
	option := map[Field]string{OwnerUID: "--uid-owner", OwnerGID: "--gid-owner"}[c.Field]
	var out []restoreMatch
	next := uint64(0)
	for _, n := range append(slices.Clone(numbers), maxID+1) {
		switch first, last := next, uint64(n)-1; {
		case uint64(n) == first+1:
			out = append(out, m.with(fmt.Sprintf("-m owner %s %d", option, first)))
		case uint64(n) > first:
			out = append(out, m.with(fmt.Sprintf("-m owner %s %d-%d", option, first, last)))
		}
		next = uint64(n) + 1
	}
	return out
}

// restoreSet lists a set: a match for each prefix, or for each group of ports. No rule excludes a set.
func restoreSet(sets []Set, matches []restoreMatch, c Cond) []restoreMatch {
	var set Set
	if i := slices.IndexFunc(sets, func(s Set) bool { return s.Name == c.Set }); i >= 0 {
		set = sets[i]
	}
	option := map[Field]string{SrcPort: "--sports", DstPort: "--dports"}[c.Field]
	var out []restoreMatch
	for _, m := range matches {
		for _, p := range set.Prefixes {
			out = append(out, Cond{Field: c.Field, Prefix: p}.restore(m, ""))
		}
		for _, ports := range set.portLists() {
			out = append(out, m.with("-m multiport "+option+" "+ports))
		}
	}
	return out
}

// restore adds a condition to a match; protocol is the protocol of the rule's ports.
func (c Cond) restore(m restoreMatch, protocol string) restoreMatch {
	not := ""
	if c.Not {
		not = "! "
	}
	option := func(name, value string) string { return not + name + " " + value }
	switch c.Field {
	case Protocol:
		m.proto = option("-p", protocol)
	case InIface:
		m.in = option("-i", c.Text)
	case OutIface:
		m.out = option("-o", c.Text)
	case InIndex: // iptables has names only; no other index is in use
		m.in = option("-i", "lo")
	case OutIndex:
		m.out = option("-o", "lo")
	case SrcAddr:
		m.src = c.restoreAddr("-s", not)
	case DstAddr:
		m.dst = c.restoreAddr("-d", not)
	case SrcPort:
		return m.with("-m " + protocol + " " + option("--sport", c.valueText()))
	case DstPort:
		return m.with("-m " + protocol + " " + option("--dport", c.valueText()))
	case OwnerUID:
		return m.with("-m owner " + c.restoreOwner("--uid-owner"))
	case OwnerGID:
		return m.with("-m owner " + c.restoreOwner("--gid-owner"))
	case Mark:
		return m.with("-m mark " + option("--mark", fmt.Sprintf("%#x", c.Num)))
	case ConnMark:
		return m.with("-m connmark " + option("--mark", fmt.Sprintf("%#x", c.Num)))
	case State:
		return m.with("-m conntrack " + option("--ctstate", stateNames(c.Num)))
	case Status:
		if c.Num == Translated {
			return m.with("-m conntrack " + option("--ctstate", "DNAT")) // that is where iptables has it
		}
		return m.with("-m conntrack " + option("--ctstatus", "CONFIRMED"))
	case ReplySrcPort:
		return m.with("-m conntrack " + option("--ctreplsrcport", c.valueText()))
	case TCPFlags:
		flags := map[uint32]string{OpeningFlags: "SYN", AnsweringFlags: "SYN,ACK"}[c.Num]
		return m.with("-m " + protocol + " " + option("--tcp-flags", "FIN,SYN,RST,ACK "+flags))
	case Direction:
		return m.with("-m conntrack " + option("--ctdir", "REPLY"))
	case SrcType:
		return m.with("-m addrtype " + option("--src-type", strings.ToUpper(c.valueText())))
	case DstType:
		return m.with("-m addrtype " + option("--dst-type", strings.ToUpper(c.valueText())))
	case Socket:
		return m.with("-m socket --nowildcard") // by default it leaves out sockets that listen at all addresses
	case Transparent:
		return m.with("-m socket --transparent --nowildcard")
	case Family:
	}
	return m
}

// restoreAddr leaves out an address that matches everything, as iptables-save does.
func (c Cond) restoreAddr(name, not string) string {
	if c.Prefix.Bits() == 0 && !c.Not {
		return ""
	}
	return not + name + " " + c.Prefix.Masked().String()
}

// restoreOwner makes a packet without a socket match neither an owner nor the negation of one, as in nftables.
func (c Cond) restoreOwner(option string) string {
	if c.Not {
		option = "--socket-exists ! " + option
	}
	return option + " " + c.valueText()
}

func stateNames(bits uint32) string {
	var names []string
	for _, s := range []struct {
		bit  uint32
		name string
	}{{Invalid, "INVALID"}, {New, "NEW"}, {Related, "RELATED"}, {Established, "ESTABLISHED"}, {Untracked, "UNTRACKED"}} {
		if bits&s.bit != 0 {
			names = append(names, s.name)
		}
	}
	return strings.Join(names, ",")
}

func protocolOf(conds []Cond) string {
	for _, c := range conds {
		if c.Field == Protocol {
			return c.valueText()
		}
	}
	return ""
}

// portLists returns the set's ports in lists for multiport of iptables, which has 15 slots. A range takes two.
func (s Set) portLists() (lists []string) {
	slots := 0
	for _, r := range s.Ranges {
		size := 1
		if r.First != r.Last {
			size = 2
		}
		if slots += size; len(lists) == 0 || slots > maxMultiport {
			lists, slots = append(lists, r.text(":")), size
			continue
		}
		lists[len(lists)-1] += "," + r.text(":")
	}
	return lists
}

func joined(numbers []uint32, by string) string {
	words := make([]string, len(numbers))
	for i, n := range numbers {
		words[i] = strconv.FormatUint(uint64(n), 10)
	}
	return strings.Join(words, by)
}
