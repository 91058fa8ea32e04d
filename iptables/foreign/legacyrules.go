package foreign

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// Flags of an entry (struct ipt_ip and struct ip6t_ip6).
const (
	entryProto6     = 1 // IP6T_F_PROTO: without it the protocol of an IPv6 entry does not count
	invertIn        = 0x01
	invertOut       = 0x02
	invertSourceIP  = 0x08
	invertDestIP    = 0x10
	invertProtocol  = 0x40
	matchHeadSize   = 32 // struct xt_entry_match
	extensionRev    = 31 // the revision's offset in it, and in struct xt_entry_target
	legacyAccept    = -2
	legacyReturn    = -5
	legacyNamesFrom = 2 // the name's offset in both
)

// errNoEnd means that a built-in chain begins behind its policy, which iptables never writes.
var errNoEnd = errors.New("is not understood: a chain without an end")

// legacyRules reads the rules of a table of iptables-legacy.
type legacyRules struct {
	legacyTable
	ours  packets
	own   []string // our chains, which are not followed
	names map[uint32]string
	read  int
}

// rulesOf returns a reader of a table. own are names of chains that are ours.
func (t legacyTable) rulesOf(ours packets, own []string) *legacyRules {
	return &legacyRules{legacyTable: t, ours: ours, own: own, names: t.chains()}
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
	seen := map[uint32]bool{end: true}
	read := func(offset uint32) (chainRules[uint32], error) { return r.chain(offset, seen) }
	words, _ := follow(begin, read, func(offset uint32) string { return r.names[offset] }) // r.chain has no other error than errTooMany
	return words
}

// chain reads the rules from an offset on, as far as they were not seen before, up to the first that does anything, or that ends the chain.
func (r *legacyRules) chain(offset uint32, seen map[uint32]bool) (f chainRules[uint32], err error) {
	for entry := range r.each(after(r.entries, int(offset), len(r.entries))) {
		if seen[offset] {
			break
		}
		seen[offset] = true
		if r.read++; r.read > maxRules {
			return f, errTooMany
		}
		rule := r.rule(entry)
		if rule.jump.is && !slices.Contains(r.own, r.names[rule.jump.offset]) {
			f.jumps = append(f.jumps, rule.jump.offset)
		}
		if f.action = rule.action; !f.nothing() || rule.endsChain() {
			break
		}
		offset += uint32(len(entry))
	}
	return f, nil
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
		out.match(extensionName(matches), uint32(matches[extensionRev]), matches[matchHeadSize:size])
		matches = matches[size:]
	}
	target := r.target(entry)
	if out.misses || len(target) == 0 {
		return out
	}
	switch name := extensionName(target); {
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

// verdict adds the verdict of a standard target: one of the kernel's, or the offset of another chain's first rule.
func (r *legacyRules) verdict(out *reading, entry []byte, code int32) {
	switch {
	case code >= 0:
		out.jump.is, out.jump.offset = true, uint32(code)
		out.ends = entry[r.flagsOffset]&r.gotoFlag != 0
	case code == legacyDrop:
		out.verdict(verdictDrop, "")
	case code == legacyAccept, code == legacyReturn:
		out.verdict(verdictAccept, "")
	case code == legacyQueue:
		out.verdict(verdictQueue, "")
	default:
		out.puzzle("a verdict")
	}
}

// head adds the conditions of an entry's head: addresses, devices and protocol.
func (r *legacyRules) head(out *reading, entry []byte) {
	names := 4 * r.addressSize
	protocol := names + 4*longestName
	flags, invert := entry[r.flagsOffset], entry[r.flagsOffset+1]
	for i, not := range []struct{ address, device bool }{
		{invert&invertSourceIP != 0, invert&invertIn != 0}, {invert&invertDestIP != 0, invert&invertOut != 0},
	} {
		if p := patternIn(entry, r.addressSize, i); anySet(p.mask) || not.address {
			out.address(p, i == 0, not.address)
		}
		if p := patternIn(entry[names:], longestName, i); anySet(p.mask) || not.device {
			out.device(func(_ uint32, device string) bool { return p.names(device) }, not.device, i == 0)
		}
	}
	counts := r.number == unix.NFPROTO_IPV4 || flags&entryProto6 != 0
	if p := u16(entry, protocol); p != 0 && counts {
		out.protocol(byte(min(p, 255)), invert&invertProtocol != 0)
	}
}

// patternIn returns the first or second of two patterns: their values, and then their masks, stand behind each other.
func patternIn(b []byte, size, i int) pattern {
	return pattern{value: b[i*size:][:size], mask: b[(i+2)*size:][:size]}
}
