package iptables

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

// ChainView is a chain with its rules in order.
type ChainView struct {
	Name     string     `json:"name"`
	Type     string     `json:"type"`
	Hook     string     `json:"hook"`
	Priority int32      `json:"priority"`
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
	v := View{Table: TableName, Sets: []SetView{}, Chains: []ChainView{}}
	for _, p := range r.Loopback {
		v.Loopback = append(v.Loopback, p.String())
	}
	for _, p := range r.Routing {
		v.Routing = append(v.Routing, p.String())
	}
	for _, s := range r.Sets {
		v.Sets = append(v.Sets, SetView{Name: s.Name, Elements: s.elements()})
	}
	for _, c := range r.Chains {
		cv := ChainView{Name: c.Name, Type: string(c.Type), Hook: string(c.Hook), Priority: c.Priority, Rules: []RuleView{}}
		for _, rule := range c.Rules {
			cv.Rules = append(cv.Rules, RuleView{
				Rule: rule.Text(), Comment: rule.Comment, Packets: rule.Counter.Packets, Bytes: rule.Counter.Bytes,
			})
		}
		v.Chains = append(v.Chains, cv)
	}
	return v
}
