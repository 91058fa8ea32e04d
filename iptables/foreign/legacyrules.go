package foreign

import (
	"errors"
	"slices"

	"istio-pod-network-controller/internal/rawnetlink"
)

// Flags of an entry (struct ipt_ip and struct ip6t_ip6).
const (
	entryGoto       = 2 // IPT_F_GOTO
	entryGoto6      = 4 // IP6T_F_GOTO
	entryProto6     = 1 // IP6T_F_PROTO
	invertIn        = 0x01
	invertOut       = 0x02
	invertSourceIP  = 0x08
	invertDestIP    = 0x10
	invertProtocol  = 0x40
	matchHeadSize   = 32 // struct xt_entry_match
	extensionRev    = 31 // the revision's offset in it, and in struct xt_entry_target
	legacyReturn    = -5
	legacyNamesFrom = 2 // the name's offset in both
)

// errNoEnd means that a built-in chain begins behind its policy, which iptables never writes.
var errNoEnd = errors.New("is not understood: a chain without an end")

// legacyRules reads the rules of a table of iptables-legacy.
type legacyRules struct {
	legacyTable
	ours  packets
	own   map[uint32]bool // where chains of ours begin, which are not followed
	names map[uint32]string
	read  int
}

// rulesOf returns a reader of a table. own are names of chains that are ours.
func (t legacyTable) rulesOf(ours packets, own []string) *legacyRules {
	r := &legacyRules{legacyTable: t, ours: ours, own: map[uint32]bool{}, names: map[uint32]string{}}
	for behind, entry := range t.each(0) { // a chain begins behind an entry whose target is called ERROR and holds its name
		target := t.target(entry)
		if rawnetlink.Name(after(target, legacyNamesFrom, targetHeadSize-1)) == "ERROR" {
			name := rawnetlink.Name(after(target, targetHeadSize, len(target)))
			r.names[behind], r.own[behind] = name, slices.Contains(own, name)
		}
	}
	return r
}

// reached returns the names of the chains that rules of the table lead to.
func (t legacyTable) reached() map[string]bool {
	r, out := t.rulesOf(packets{all: true}, nil), map[string]bool{}
	for _, entry := range t.each(0) {
		if jump := r.rule(entry).jump; jump.is {
			out[r.names[jump.offset]] = true
		}
	}
	return out
}

// after returns b from an offset up to another, as far as b has that.
func after(b []byte, from, to int) []byte { return b[min(len(b), from):min(len(b), max(from, to))] }

// target returns the target of an entry; it is empty if it is not whole.
func (f legacyFamily) target(entry []byte) []byte {
	target := after(entry, int(u16(entry, f.nextOffset-2)), len(entry))
	if len(target) < targetHeadSize {
		return nil
	}
	return target
}

// does returns what the built-in chain at a hook, or a chain that it leads to, may do to packets of ours, in words. "" is nothing.
func (r *legacyRules) does(hook uint32) string {
	begin, end, ok := r.builtIn(hook)
	if !ok {
		return ""
	}
	if begin > end || end > uint32(len(r.entries)) {
		return errNoEnd.Error()
	}
	r.ours.out = hook == hookOutput
	seen, queue := map[uint32]bool{end: true}, []uint32{begin}
	for len(queue) > 0 {
		var words string
		if words, queue = r.chain(queue[0], seen, queue[1:]); words != "" {
			return words
		}
	}
	return ""
}

// chain reads the rules from an offset on, as far as they were not seen before. It returns what the first that does anything does, and the queue
// with the chains that rules lead to.
func (r *legacyRules) chain(offset uint32, seen map[uint32]bool, queue []uint32) (words string, _ []uint32) {
	name := r.names[offset]
	for behind, entry := range r.each(offset) {
		if seen[offset] {
			break
		}
		seen[offset] = true
		if r.read++; r.read > maxRules {
			return errTooMany.Error(), nil
		}
		rule := r.rule(entry)
		switch {
		case rule.nothing():
		case name != "":
			return rule.String() + " in chain " + name, nil
		default:
			return rule.String(), nil
		}
		if rule.jump.is && !r.own[rule.jump.offset] {
			queue = append(queue, rule.jump.offset)
		}
		if rule.endsChain() {
			break
		}
		offset = behind
	}
	return "", queue
}

// rule reads one entry.
func (r *legacyRules) rule(entry []byte) reading {
	out := reading{packets: r.ours}
	r.head(&out, entry)
	matches := after(entry, r.size, int(u16(entry, r.nextOffset-2)))
	for len(matches) >= matchHeadSize && !out.misses {
		size := int(u16(matches, 0))
		if size < matchHeadSize || size > len(matches) {
			out.conditional = true // which the kernel does not let pass
			break
		}
		out.match(rawnetlink.Name(matches[legacyNamesFrom:extensionRev]), uint32(matches[extensionRev]), matches[matchHeadSize:size])
		matches = matches[size:]
	}
	target := r.target(entry)
	if out.misses || len(target) == 0 {
		return out
	}
	switch name := rawnetlink.Name(target[legacyNamesFrom:extensionRev]); {
	case name == "ERROR":
		out.ends, out.conditional = true, false
	case name != "":
		out.target(name, uint32(target[extensionRev]), after(target, targetHeadSize, int(u16(target, 0))))
	case len(target) >= targetHeadSize+4:
		r.verdict(&out, entry, int32(u32(target, targetHeadSize)))
	default:
		out.puzzle("a verdict")
	}
	return out
}

// verdict adds the verdict of a standard target: the offset of another chain's first rule, or one of the kernel's, as -1 less it.
func (r *legacyRules) verdict(out *reading, entry []byte, code int32) {
	switch {
	case code >= 0:
		out.jump.is, out.jump.offset = true, uint32(code)
		out.ends = entry[r.flags]&r.gotos != 0
	case code == legacyReturn:
		out.ends = true
	default:
		out.verdict(-1-code, "")
	}
}

// head adds the conditions of an entry's head: addresses, devices and protocol.
func (r *legacyRules) head(out *reading, entry []byte) {
	size := r.address
	flags, invert := entry[r.flags], entry[r.flags+1]
	names := 4 * size
	for i, inverted := range []bool{invert&invertSourceIP != 0, invert&invertDestIP != 0} {
		p := pattern{value: entry[i*size : (i+1)*size], mask: entry[(i+2)*size : (i+3)*size]}
		if anySet(p.mask) || inverted {
			out.address(p, i == 0, inverted)
		}
	}
	for i, inverted := range []bool{invert&invertIn != 0, invert&invertOut != 0} {
		p := pattern{value: entry[names+i*longestName:][:longestName], mask: entry[names+(i+2)*longestName:][:longestName]}
		if anySet(p.mask) || inverted {
			out.device(p.isOf, inverted, i == 0)
		}
	}
	if p := u16(entry, names+4*longestName); p != 0 && flags&r.protocols == r.protocols {
		out.protocol(byte(min(p, 255)), invert&invertProtocol != 0)
	}
}
