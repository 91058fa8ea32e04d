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
	if e, ok := c.extension(protocol); ok {
		return m.with(fmt.Sprintf("-m %s %s%s %s", e.name, not, e.option, e.value))
	}
	switch c.Field {
	case Protocol:
		m.proto = not + "-p " + protocol
	case InIface:
		m.in = not + "-i " + c.Text
	case OutIface:
		m.out = not + "-o " + c.Text
	case InIndex: // iptables has names only; no other index is in use
		m.in = not + "-i lo"
	case OutIndex:
		m.out = not + "-o lo"
	case SrcAddr:
		m.src = c.restoreAddr("-s", not)
	case DstAddr:
		m.dst = c.restoreAddr("-d", not)
	case OwnerUID:
		return m.with("-m owner " + c.restoreOwner("--uid-owner"))
	case OwnerGID:
		return m.with("-m owner " + c.restoreOwner("--gid-owner"))
	case Socket:
		return m.with("-m socket --nowildcard") // by default it leaves out sockets that listen at all addresses
	case Transparent:
		return m.with("-m socket --transparent --nowildcard")
	default:
	}
	return m
}

// extension is a match of iptables with one option.
type extension struct{ name, option, value string }

// extension returns the match for the field, if that is one with one option.
func (c Cond) extension(protocol string) (e extension, ok bool) {
	value, mark := c.valueText(), fmt.Sprintf("%#x", c.Num)
	status := extension{"conntrack", "--ctstatus", "CONFIRMED"}
	if c.Num == Translated {
		status = extension{"conntrack", "--ctstate", "DNAT"} // that is where iptables has it
	}
	e, ok = map[Field]extension{
		SrcPort: {protocol, "--sport", value}, DstPort: {protocol, "--dport", value}, Mark: {"mark", "--mark", mark}, ConnMark: {"connmark", "--mark", mark},
		TCPFlags: {protocol, "--tcp-flags", "FIN,SYN,RST,ACK " + map[uint32]string{OpeningFlags: "SYN", AnsweringFlags: "SYN,ACK"}[c.Num]},
		State:    {"conntrack", "--ctstate", stateNames(c.Num)}, Status: status, Direction: {"conntrack", "--ctdir", "REPLY"},
		ReplySrcPort: {"conntrack", "--ctreplsrcport", value},
		SrcType:      {"addrtype", "--src-type", strings.ToUpper(value)}, DstType: {"addrtype", "--dst-type", strings.ToUpper(value)},
	}[c.Field]
	return e, ok
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
	for _, r := range slices.Concat(single(s.Ports), s.Ranges) {
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
