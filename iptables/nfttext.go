package iptables

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// TextOptions change what NftText prints.
type TextOptions struct {
	// Counters adds the counters of each rule. Without it, equal Rulesets have equal texts.
	Counters bool
	// Replace adds statements in front, so that the text, loaded with nft -f, replaces what the namespace holds.
	Replace bool
}

// NftText renders the Ruleset in nft's language: what `nft -f` loads and `nft list table` shows. Addresses and routes are not
// part of that language; they are in comments.
func (r Ruleset) NftText(o TextOptions) string {
	var b strings.Builder
	b.WriteString(r.Comments())
	if o.Replace {
		fmt.Fprintf(&b, "table inet %[1]s\ndelete table inet %[1]s\n", r.table())
	}
	fmt.Fprintf(&b, "table inet %s {\n", r.table())
	for _, s := range r.Sets {
		fmt.Fprintf(&b, "\tset %s {\n%s\t}\n", s.Name, s.body())
	}
	for _, c := range r.declarable() {
		fmt.Fprintf(&b, "\tchain %s {\n", c.Name)
		if c.Hook != "" {
			fmt.Fprintf(&b, "\t\ttype %s hook %s priority %d; policy accept;\n", c.Type, c.Hook, c.Priority)
		}
		for _, rule := range c.Rules {
			fmt.Fprintf(&b, "\t\t%s\n", rule.text(o))
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// Comments returns the commands that make the address and the routes, as comments of nft's and iptables' languages, of which they are no part.
func (r Ruleset) Comments() (text string) {
	if r.Loopback {
		text = fmt.Sprintf("# ip address replace %s dev lo\n", LoopbackAddr())
	}
	if r.Routing {
		text += "# " + routeCommands + "\n"
	}
	return text
}

// table returns the name of the table.
func (r Ruleset) table() string { return cmp.Or(r.Table, TableName) }

// declarable returns the chains without a hook first: nft takes no jump to a chain that it has not seen.
func (r Ruleset) declarable() []Chain {
	return slices.SortedStableFunc(slices.Values(r.Chains), func(a, b Chain) int {
		return cmp.Compare(min(1, len(a.Hook)), min(1, len(b.Hook)))
	})
}

func (s Set) elements() []string {
	out := make([]string, 0, len(s.Ranges)+len(s.Prefixes))
	for _, r := range s.Ranges {
		out = append(out, r.String())
	}
	for _, p := range s.Prefixes {
		out = append(out, p.String())
	}
	return out
}

func (s Set) body() string {
	kind, flags := "inet_service", ""
	switch s.Kind {
	case IPv4Set:
		kind, flags = "ipv4_addr", "\t\tflags interval\n"
	case IPv6Set:
		kind, flags = "ipv6_addr", "\t\tflags interval\n"
	case RangeSet:
		flags = "\t\tflags interval\n"
	case PortSet:
	}
	return fmt.Sprintf("\t\ttype %s\n%s\t\telements = { %s }\n", kind, flags, strings.Join(s.elements(), ", "))
}

// Text returns the rule in nft's language, without its counter.
func (r Rule) Text() string { return r.text(TextOptions{}) }

func (r Rule) text(o TextOptions) string {
	var words []string
	for i, c := range r.Conds {
		words = append(words, c.text(r.Conds[:i]))
	}
	switch {
	case r.Uncounted:
	case o.Counters:
		words = append(words, fmt.Sprintf("counter packets %d bytes %d", r.Counter.Packets, r.Counter.Bytes))
	default:
		words = append(words, "counter")
	}
	return fmt.Sprintf("%s comment %q", strings.Join(append(words, r.Action.text(familyIn(r.Conds))), " "), r.Comment)
}

// text renders a condition. The conditions before it determine the family of an address.
func (c Cond) text(before []Cond) string {
	words := []string{c.fieldText(before)}
	switch {
	case c.Not && c.Field.IsBits():
		return fmt.Sprintf("%s & %s == 0", words[0], c.valueText())
	case c.Not:
		words = append(words, "!=")
	case c.Field == TCPFlags:
		words = append(words, "==")
	case c.Field == Socket:
		words = append(words, "<=")
	}
	return strings.Join(append(words, c.valueText()), " ")
}

func (c Cond) fieldText(before []Cond) string {
	switch c.Field {
	case SrcAddr:
		return familyIn(before) + " saddr"
	case DstAddr:
		return familyIn(before) + " daddr"
	default:
		return map[Field]string{
			Family: "meta nfproto", Protocol: "meta l4proto", InIface: "iifname", OutIface: "oifname", InIndex: "iif", OutIndex: "oif", SrcPort: "th sport",
			DstPort: "th dport", OwnerUID: "meta skuid", OwnerGID: "meta skgid", Mark: "meta mark", ConnMark: "ct mark", State: "ct state",
			SrcType: "fib saddr type", DstType: "fib daddr type", TCPFlags: "tcp flags & (fin | syn | rst | ack)", Direction: "ct direction", Status: "ct status",
			ReplySrcPort: "ct reply proto-src", Socket: "socket transparent", Transparent: "socket transparent",
		}[c.Field]
	}
}

// familyIn returns the name of the family that the conditions require.
func familyIn(conds []Cond) string {
	if slices.Contains(conds, num(Family, IPv6)) {
		return "ip6"
	}
	return "ip"
}

func (c Cond) valueText() string {
	switch {
	case c.Set != "":
		return "@" + c.Set
	case c.Text != "":
		return strconv.Quote(c.Text)
	case c.Prefix.IsValid() && c.Prefix.IsSingleIP():
		return c.Prefix.Addr().String()
	case c.Prefix.IsValid():
		return c.Prefix.String()
	}
	name, ok := map[Cond]string{
		{Field: Family, Num: IPv4}: "ipv4", {Field: Family, Num: IPv6}: "ipv6",
		{Field: InIndex, Num: LoopbackIndex}: `"lo"`, {Field: OutIndex, Num: LoopbackIndex}: `"lo"`,
		{Field: Protocol, Num: TCP}: "tcp", {Field: Protocol, Num: UDP}: "udp", {Field: Protocol, Num: ICMP}: "icmp", {Field: Protocol, Num: ICMPv6}: "ipv6-icmp",
		{Field: SrcType, Num: Local}: "local", {Field: DstType, Num: Local}: "local", {Field: TCPFlags, Num: OpeningFlags}: "syn", {Field: TCPFlags, Num: AnsweringFlags}: "syn | ack", {Field: Direction, Num: Reply}: "reply",
		{Field: State, Num: Invalid}: "invalid", {Field: State, Num: Established | Related}: "established,related",
		{Field: State, Num: lostStates}: "invalid,new,established,untracked",
		{Field: Status, Num: Confirmed}: "confirmed", {Field: Status, Num: Translated}: "dnat",
	}[Cond{Field: c.Field, Num: c.Num}]
	if ok {
		return name
	}
	number := strconv.FormatUint(uint64(c.Num), 10)
	if c.Last != 0 {
		return number + "-" + strconv.FormatUint(uint64(c.Last), 10)
	}
	return number
}

func (a Action) text(family string) string {
	switch a.Verb {
	case Return:
		return "return"
	case Redirect:
		return fmt.Sprintf("redirect to :%d", a.Port)
	case Drop:
		return "drop"
	case SetMark:
		return fmt.Sprintf("meta mark set %d", a.Num)
	case Divert:
		return fmt.Sprintf("meta mark set %d return", a.Num)
	case TProxy:
		return fmt.Sprintf("tproxy %s to :%d meta mark set %d return", family, a.Port, a.Num)
	case SaveMark:
		return "ct mark set meta mark return"
	case RestoreMark:
		return "meta mark set ct mark return"
	case Zone:
		return fmt.Sprintf("ct zone set %d return", a.Num)
	case ZoneOneWay:
		return fmt.Sprintf("ct original zone set %d return", a.Num)
	case Jump:
		return "jump " + a.Chain
	case Goto:
		return "goto " + a.Chain
	}
	return fmt.Sprintf("verb-%d", a.Verb)
}

// routeCommands make the rule and the route of each family.
var routeCommands = fmt.Sprintf("ip rule add fwmark %d lookup %d; ip route replace local default dev lo table %[2]d (and for -6)", RouteMark, RouteTable)

// View is a Ruleset for machines to read: the content of NftText in fields. Field names are stable.
type View struct {
	Table    string      `json:"table"`
	Loopback []string    `json:"loopback,omitempty"`
	Routing  []string    `json:"routing,omitempty"`
	Sets     []SetView   `json:"sets"`
	Chains   []ChainView `json:"chains"`
}

// SetView is a set with its elements as text.
type SetView struct {
	Name     string   `json:"name"`
	Elements []string `json:"elements"`
}

// ChainView is a chain with its rules in order. Only a chain with a hook has a type and a priority.
type ChainView struct {
	Name     string     `json:"name"`
	Type     string     `json:"type,omitempty"`
	Hook     string     `json:"hook,omitempty"`
	Priority int32      `json:"priority,omitempty"`
	Rules    []RuleView `json:"rules"`
}

// RuleView is a rule in nft's language with its counters.
type RuleView struct {
	Rule    string `json:"rule"`
	Comment string `json:"comment"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// View returns the Ruleset for machines to read.
func (r Ruleset) View() View {
	v := View{Table: r.table(), Sets: []SetView{}, Chains: []ChainView{}}
	if r.Loopback {
		v.Loopback = []string{LoopbackAddr().String()}
	}
	if r.Routing {
		v.Routing = []string{routeCommands}
	}
	for _, s := range r.Sets {
		v.Sets = append(v.Sets, SetView{Name: s.Name, Elements: s.elements()})
	}
	for _, c := range r.Chains {
		cv := ChainView{Name: c.Name, Rules: []RuleView{}}
		if c.Hook != "" {
			cv.Type, cv.Hook, cv.Priority = string(c.Type), string(c.Hook), c.Priority
		}
		for _, rule := range c.Rules {
			cv.Rules = append(cv.Rules, RuleView{
				Rule: rule.Text(), Comment: rule.Comment, Packets: rule.Counter.Packets, Bytes: rule.Counter.Bytes,
			})
		}
		v.Chains = append(v.Chains, cv)
	}
	return v
}

// String returns the users as annotations have them: 1000, 1000-1999, or 1000-1999:443.
func (u Users) String() string {
	text := u.cond().valueText()
	if u.Port != 0 {
		text += fmt.Sprintf(":%d", u.Port)
	}
	return text
}
