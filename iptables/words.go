package iptables

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Line is one rule in words, with the kernel's counters. In a nat chain that is the first packet of each connection. Without a counter, Packets and
// Bytes are absent. The names of its fields are stable: `inspect` and `explain` print it.
type Line struct {
	Chain string `json:"chain"`
	// Words is the traffic and what becomes of it, such as "tcp to port 15020 -> direct", or the rule in the language of iptables.
	Words string `json:"words"`
	// Why is the rule's comment.
	Why     string  `json:"why,omitempty"`
	Packets *uint64 `json:"packets,omitempty"`
	Bytes   *uint64 `json:"bytes,omitempty"`
}

// String returns the rule with its comment.
func (l Line) String() string {
	if l.Why == "" {
		return l.Words
	}
	return l.Words + "  # " + l.Why
}

// Counted returns what the kernel has counted, "-" without a counter.
func (l Line) Counted() (packets, bytes string) {
	if l.Packets == nil || l.Bytes == nil {
		return "-", "-"
	}
	return strconv.FormatUint(*l.Packets, 10), strconv.FormatUint(*l.Bytes, 10)
}

// maxLines bounds the lines of one namespace, which its pod may have filled.
const maxLines = 4096

// Lines returns the rules in words, in the order in which packets meet them: what the pod sends, then what reaches it.
func (r Ruleset) Lines() []Line {
	var out []Line
	chains := slices.Clone(r.Chains)
	slices.SortStableFunc(chains, func(a, b Chain) int {
		a, _ = r.asking(a)
		b, _ = r.asking(b)
		return cmp.Or(cmp.Compare(a.Hook.rank(), b.Hook.rank()), cmp.Compare(a.Priority, b.Priority))
	})
	for _, c := range chains {
		in := c
		if asking, by := r.asking(c); by == Goto {
			in = asking
		}
		for _, rule := range c.Rules {
			if len(out) == maxLines {
				return append(out, Line{Chain: tidy(c.Name), Words: "more rules than are shown"})
			}
			out = append(out, c.line(rule, r.Sets, in))
		}
	}
	return out
}

// NativeLine returns a rule in the language of another backend than nftables.
func NativeLine(chain, rule, comment string, c Counter) Line {
	return Line{Chain: tidy(chain), Words: tidy(rule), Why: tidy(comment), Packets: &c.Packets, Bytes: &c.Bytes}
}

// asking returns the chain with a hook that a chain belongs to: itself, or the one with a rule that asks it, by Jump or Goto.
func (r Ruleset) asking(c Chain) (asking Chain, by Verb) {
	for _, other := range r.Chains {
		asks := func(r Rule) bool { return r.Action.Chain == c.Name }
		if i := slices.IndexFunc(other.Rules, asks); i >= 0 && c.Hook == "" && other.Hook != "" {
			return other, other.Rules[i].Action.Verb
		}
	}
	return c, 0
}

func (h Hook) rank() int {
	if i := slices.Index([]Hook{Output, Prerouting}, h); i >= 0 {
		return i
	}
	return 2
}

func (c Chain) line(rule Rule, sets []Set, in Chain) Line {
	out := Line{Chain: tidy(c.Name), Words: tidy(rule.traffic(sets)) + " -> " + rule.Action.words(in), Why: tidy(rule.Comment)}
	if !rule.Uncounted {
		out.Packets, out.Bytes = &rule.Counter.Packets, &rule.Counter.Bytes
	}
	return out
}

// traffic returns the packets that the rule matches, in words, in the order of the fields.
func (r Rule) traffic(sets []Set) string {
	conds := slices.SortedStableFunc(slices.Values(r.Conds), func(a, b Cond) int { return cmp.Compare(a.Field, b.Field) })
	var words []string
	for i, c := range conds {
		if numbers := excepted(conds, c); len(numbers) > 1 {
			if len(excepted(conds[:i], c)) > 0 {
				continue // the first such condition stands for all
			}
			c.Text = joined(numbers, ", ")
		}
		toAddress := i > 0 && conds[i-1].Field == DstAddr
		if toAddress && c.Field == DstPort && c.Not {
			words[len(words)-1] += ","
		}
		words = append(words, c.words(sets, toAddress))
	}
	if len(conds) == 0 || conds[0].Field > Protocol {
		words = slices.Insert(words, 0, "anything")
	}
	return strings.Join(words, " ")
}

// phrases begin what is said of a condition, and of a negated one. With a number it is all that is said; else the value follows.
func phrases() map[Cond][2]string {
	return map[Cond][2]string{
		{Field: Family, Num: IPv4}: {"IPv4", "not IPv4"}, {Field: Family, Num: IPv6}: {"IPv6", "not IPv6"}, {Field: Protocol}: {"", "anything but "},
		{Field: InIface}: {"", "not "}, {Field: OutIface}: {"", "not "}, {Field: InIndex}: {"", "not "}, {Field: OutIndex}: {"", "not "},
		{Field: SrcAddr}: {"from ", "from anywhere but "}, {Field: DstAddr}: {"to ", "to anywhere but "},
		{Field: SrcPort}: {"from ", "not from "}, {Field: DstPort}: {"to ", "to any port but "},
		{Field: OwnerUID}: {"of user ", "not of user "}, {Field: OwnerGID}: {"of group ", "not of group "},
		{Field: Mark}: {"with mark ", "without mark "}, {Field: ConnMark}: {"of a connection with mark ", "of a connection without mark "},
		{Field: TCPFlags, Num: OpeningFlags}:         {"opening a connection (SYN)", "not opening a connection"},
		{Field: TCPFlags, Num: AnsweringFlags}:       {"answering an opening (SYN, ACK)", "not answering an opening"},
		{Field: State}:                               {"in state ", "not in state "},
		{Field: Status, Num: Confirmed}:              {"of a connection seen before", "of a new connection"},
		{Field: Status, Num: Translated}:             {"of a redirected connection", "not of a redirected connection"},
		{Field: ReplySrcPort}:                        {"answered from ", "not answered from "},
		{Field: Direction, Num: Reply}:               {"that are answers", "that are no answers"},
		{Field: SrcType, Num: Local}:                 {"from an address of the pod", "from an address that is not the pod's"},
		{Field: DstType, Num: Local}:                 {"to an address of the pod", "to an address that is not the pod's"},
		{Field: Socket, Num: AnySocket}:              {"that a socket of the pod takes"},
		{Field: Transparent, Num: TransparentSocket}: {"that a transparent socket takes"},
	}
}

// words renders a condition as a part of a sentence about a packet. toAddress reports whether the destination's address precedes it.
func (c Cond) words(sets []Set, toAddress bool) string {
	negated := map[bool]int{true: 1}[c.Not]
	known := phrases()
	if whole, ok := known[Cond{Field: c.Field, Num: c.Num}]; ok && c.Num != 0 {
		return whole[negated]
	}
	value := c.value(sets)
	begin, ok := known[Cond{Field: c.Field}]
	said := begin[negated]
	switch c.Field {
	case InIface, OutIface, InIndex, OutIndex:
		return said + c.interfaceWords(value)
	case DstPort:
		if toAddress {
			said = strings.TrimPrefix(said, "to ")
		}
		if !c.Not {
			said += portWord(value)
		}
	case SrcPort, ReplySrcPort:
		said += portWord(value)
	default:
	}
	if !ok {
		said = fmt.Sprintf("field-%d ", c.Field)
	}
	return said + value
}

func (c Cond) interfaceWords(name string) string {
	byIndex := c.Field == InIndex || c.Field == OutIndex
	switch {
	case byIndex && c.Num == LoopbackIndex:
		return "over lo"
	case byIndex:
		name = "interface " + name
	}
	if c.Field == InIface || c.Field == InIndex {
		return "coming in by " + name
	}
	return "going out by " + name
}

func portWord(value string) string {
	if strings.ContainsAny(value, ",-") {
		return "ports "
	}
	return "port "
}

// maxListed is how many elements of a set are named.
const maxListed = 16

// value returns what the condition compares with. Text may hold a list.
func (c Cond) value(sets []Set) string {
	switch i := slices.IndexFunc(sets, func(s Set) bool { return s.Name == c.Set }); {
	case c.Set != "" && i < 0:
		return "set " + c.Set + ", which is missing"
	case c.Set != "":
		return sets[i].words()
	case c.Text != "":
		return c.Text
	case c.Field == InIface || c.Field == OutIface:
		return "an interface without a name"
	case c.Field == State:
		return strings.ToLower(stateNames(c.Num))
	case c.Field == Protocol && !slices.Contains([]uint32{TCP, UDP, ICMP, ICMPv6}, c.Num):
		return "protocol " + strconv.FormatUint(uint64(c.Num), 10)
	}
	return c.valueText()
}

func (s Set) words() string {
	all := s.elements()
	if len(all) == 0 {
		return "nothing"
	}
	if more := len(all) - maxListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:maxListed], ", "), more)
	}
	return strings.Join(all, ", ")
}

// words renders an action. Return means that the packet stays as it is: for a nat chain, that its connection stays direct.
func (a Action) words(in Chain) string {
	switch a.Verb {
	case Return:
		switch {
		case in.Hook == "":
			return "back"
		case in.Type == NAT:
			return "direct"
		}
		return "passes"
	case Jump, Goto:
		return "chain " + tidy(a.Chain)
	case Redirect:
		return redirectWords(a.Port)
	case Drop:
		return "dropped"
	case SetMark:
		return fmt.Sprintf("marked %d, and on to the next rule", a.Num)
	case Divert:
		return fmt.Sprintf("marked %d", a.Num)
	case TProxy:
		return fmt.Sprintf("proxy's %d, addresses unchanged, marked %d", a.Port, a.Num)
	case SaveMark:
		return "its mark goes to the connection"
	case RestoreMark:
		return "takes the connection's mark"
	case Zone, ZoneOneWay:
		return fmt.Sprintf("connection tracking zone %d", a.Num)
	}
	return "nothing that our rules do"
}

func redirectWords(port uint16) string {
	switch port {
	case refusedPort:
		return "refused"
	case resolverPort:
		return fmt.Sprintf("proxy's resolver, %d", port)
	}
	return fmt.Sprintf("proxy's %d", port)
}

// ChainTitle says which packets a chain of ours sees, by the chain's name in nftables or in iptables; "" for others.
func ChainTitle(name string) string {
	titles := map[string]string{
		chainOutbound:  "connections that the pod opens",
		chainReusedOut: "packets that the pod sends",
		chainLostOut:   "connections of the pod that chain outbound may not see",
		chainInbound:   "connections that reach the pod",
		chainReusedIn:  "packets that reach the pod",
		chainLostIn:    "connections to the pod that chain inbound may not see",
		chainMark:      "packets that the pod sends, before they are routed",
		chainDivert:    "packets that reach the pod, before they are routed",
		chainAway:      "connections that leave the pod",
		chainMarkLo:    "packets inside the pod, before they are routed",
		chainDNSOut:    "packets that the pod sends, before connection tracking",
		chainLookups:   "lookups and answers that the pod sends",
		chainHold:      "connections to the proxy's ports",
		chainDNSIn:     "lookups of virtual machines behind the pod",
	}
	for ours, title := range titles {
		if name == ours || name == (Chain{Name: ours}).restoreName() {
			return title
		}
	}
	return ""
}

// maxWords bounds a text of a line.
const maxWords = 800

// tidy returns a text that a pod may have written for a line.
func tidy(text string) string { return printable(text, maxWords) }
