package iptables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ReadRestoreRule is the inverse of the rules of RestoreText: it reads one rule, as its words without "-A CHAIN", to be printed. It accepts
// any words. For a rule that we cannot have written, the comment says so.
//
// Lists of ports and ranges of owners, for which a Cond has no type, are in its Text.
func ReadRestoreRule(words []string) Rule {
	d := restoreReader{words: words}
	for len(d.words) > 0 {
		if err := d.take(d.next()); err != nil {
			d.rule.Comment = fmt.Sprintf("not ours: %s: %s", err, strings.Join(words, " "))
			return d.rule
		}
	}
	return d.rule
}

// restoreReader reads a rule word by word.
type restoreReader struct {
	words  []string
	not    bool   // the next option is negated
	module string // the last match
	rule   Rule
}

func (d *restoreReader) next() string {
	if len(d.words) == 0 {
		return ""
	}
	word := d.words[0]
	d.words = d.words[1:]
	return word
}

// take reads one option with its values.
func (d *restoreReader) take(option string) error {
	switch option {
	case "!":
		d.not = true
		return nil
	case "-m":
		d.module = d.next()
		return nil
	case "--comment":
		d.rule.Comment = d.next()
		return nil
	case "--socket-exists":
		return nil // restoreOwner says why
	case "-j":
		return d.target(d.next())
	}
	c, err := d.cond(option)
	if err != nil {
		return fmt.Errorf("option %s: %w", option, err)
	}
	c.Not, d.not = d.not, false
	d.rule.Conds = append(d.rule.Conds, c)
	return nil
}

var errNotWritten = errors.New("not one that our rules have")

func (d *restoreReader) cond(option string) (Cond, error) {
	switch option {
	case "-p":
		n, ok := map[string]uint32{"tcp": TCP, "udp": UDP}[d.next()]
		return num(Protocol, n), written(ok)
	case "-i":
		return iif(d.next()), nil
	case "-o":
		return oif(d.next()), nil
	case "-s":
		return d.prefix(SrcAddr)
	case "-d":
		return d.prefix(DstAddr)
	case "--sport", "--sports":
		return d.list(SrcPort)
	case "--dport", "--dports":
		return d.list(DstPort)
	case "--uid-owner":
		return d.list(OwnerUID)
	case "--gid-owner":
		return d.list(OwnerGID)
	case "--mark":
		return d.mark()
	case "--nowildcard":
		return num(Socket, AnySocket), written(d.module == "socket")
	case "--tcp-flags":
		mask, flags := d.next(), d.next()
		n, ok := map[string]uint32{"SYN": OpeningFlags, "SYN,ACK": AnsweringFlags}[flags]
		return num(TCPFlags, n), written(ok && mask == "FIN,SYN,RST,ACK")
	}
	return d.tracked(option)
}

// tracked reads a condition about the packet's connection, or about one of its addresses.
func (d *restoreReader) tracked(option string) (Cond, error) {
	switch value := d.next(); option {
	case "--ctstate":
		if value == "DNAT" {
			return num(Status, Translated), nil
		}
		bits, ok := stateBits(value)
		return num(State, bits), written(ok)
	case "--ctstatus":
		return num(Status, Confirmed), written(value == "CONFIRMED")
	case "--ctdir":
		return num(Direction, Reply), written(value == "REPLY")
	case "--src-type":
		return num(SrcType, Local), written(value == "LOCAL")
	case "--dst-type":
		return num(DstType, Local), written(value == "LOCAL")
	}
	return Cond{}, errNotWritten
}

func written(ok bool) error {
	if ok {
		return nil
	}
	return errNotWritten
}

func (d *restoreReader) prefix(f Field) (Cond, error) {
	text := d.next()
	p, err := netip.ParsePrefix(text)
	if a, errAddr := netip.ParseAddr(text); errAddr == nil {
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	return addr(f, p), written(err == nil)
}

// list reads one number, or several separated by commas, or a range.
func (d *restoreReader) list(f Field) (Cond, error) {
	text := d.next()
	if n, err := strconv.ParseUint(text, 10, 32); err == nil {
		return num(f, uint32(n)), nil
	}
	ok := text != "" && strings.Trim(text, "0123456789,-:") == ""
	return Cond{Field: f, Text: strings.ReplaceAll(text, ",", ", ")}, written(ok)
}

// mark reads the mark of a packet or of a connection, as the match before it says.
func (d *restoreReader) mark() (Cond, error) {
	n, err := strconv.ParseUint(d.next(), 0, 32)
	f, ok := map[string]Field{"mark": Mark, "connmark": ConnMark}[d.module]
	return num(f, uint32(n)), written(ok && err == nil)
}

// stateBits is the inverse of stateNames.
func stateBits(names string) (bits uint32, ok bool) {
	for name := range strings.SplitSeq(names, ",") {
		bit := map[string]uint32{"INVALID": Invalid, "NEW": New, "RELATED": Related, "ESTABLISHED": Established}[name]
		if bit == 0 {
			return 0, false
		}
		bits |= bit
	}
	return bits, true
}

// target reads the rest of the rule.
func (d *restoreReader) target(name string) error {
	values := d.words
	d.words = nil
	number := func(option string, bits int) uint32 {
		i := slices.Index(values, option)
		if i < 0 || i+1 >= len(values) {
			return 0
		}
		text, _, _ := strings.Cut(values[i+1], "/")
		n, _ := strconv.ParseUint(text, 0, bits)
		return uint32(n) //nolint:gosec // at most 32 bits
	}
	a := &d.rule.Action
	switch name {
	case "RETURN", "ACCEPT":
		a.Verb = Return
	case "DROP":
		a.Verb = Drop
	case "REDIRECT":
		a.Verb, a.Port = Redirect, uint16(number("--to-ports", 16)) //nolint:gosec // 16 bits
	case "MARK":
		a.Verb, a.Num = SetMark, number("--set-xmark", 32)
	case "TPROXY":
		a.Verb, a.Port, a.Num = TProxy, uint16(number("--on-port", 16)), number("--tproxy-mark", 32) //nolint:gosec // 16 bits
	case "CT":
		a.Verb, a.Num = Zone, number("--zone", 32)
	case "CONNMARK":
		a.Verb = RestoreMark
		if slices.Contains(values, "--save-mark") {
			a.Verb = SaveMark
		}
	default:
		return fmt.Errorf("target %s: %w", name, errNotWritten)
	}
	return nil
}
