package xtables

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"istio-pod-network-controller/iptables"
)

// restorable returns have in a form that is safe to restore, without any word of a pod. Rules are rebuilt from our own vocabulary. A
// chain with other words is taken from want, or left empty.
func restorable(have snapshot, want iptables.Ruleset) snapshot {
	out := snapshot{}
	goal, known := wanted(have, want), newVocabulary()
	for family, tables := range have {
		out[family] = state{}
		for name, t := range tables {
			safe := &table{chains: map[string][]rule{}, jumps: t.jumps, used: t.used}
			for chain, rules := range t.chains {
				var ok bool
				if safe.chains[chain], ok = known.rewritten(rules); !ok {
					safe.chains[chain] = goal[family].of(name).chains[chain]
				}
			}
			out[family][name] = safe
		}
	}
	return out
}

// vocabulary is everything that our rules consist of.
type vocabulary struct {
	words, comments []string
	numbers         *regexp.Regexp // one or several: ports, ranges of owners, a mark and its mask
	iface           *regexp.Regexp // names that an interface may have in a Spec
}

func newVocabulary() vocabulary {
	return vocabulary{
		words: ownWords(), comments: iptables.Comments(),
		numbers: regexp.MustCompile(`^[0-9][0-9a-fx]*([,:/-][0-9][0-9a-fx]*)*$`),
		iface:   regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_.-]{0,14}$`),
	}
}

// rewritten rebuilds rules from their words. ok reports whether all rules are such as we write.
func (v vocabulary) rewritten(rules []rule) (out []rule, ok bool) {
	for _, r := range rules {
		words := r.words()
		i := slices.Index(words, "--comment")
		if i < 0 || i+1 >= len(words) || !slices.Contains(v.comments, words[i+1]) {
			return nil, false
		}
		for k, word := range words {
			if k != i+1 && !v.plain(words[max(0, k-1)], word) {
				return nil, false
			}
		}
		words[i+1] = iptables.Quoted(words[i+1])
		out = append(out, rule{spec: strings.Join(words, " ")})
	}
	return out, true
}

// plain reports whether a word is one of ours, or a value that may follow the word before it.
func (v vocabulary) plain(before, word string) bool {
	if slices.Contains(v.words, word) {
		return true
	}
	switch before {
	case "-j", "-g", "-m":
		return false
	case "-i", "-o":
		return v.iface.MatchString(word)
	}
	_, errPrefix := netip.ParsePrefix(word)
	_, errAddr := netip.ParseAddr(word)
	return errPrefix == nil || errAddr == nil || v.numbers.MatchString(word)
}

// ownWords returns all words of our rules except values.
func ownWords() []string {
	return strings.Fields(`! -s -d -i -o -p -m -j -g tcp udp comment multiport owner mark connmark conntrack addrtype socket
		--comment --dport --sport --dports --sports --uid-owner --gid-owner --socket-exists --mark --ctstate --ctstatus --ctdir --ctreplsrcport --src-type --dst-type --tcp-flags --nowildcard --transparent
		FIN,SYN,RST,ACK SYN SYN,ACK LOCAL REPLY INVALID RELATED,ESTABLISHED INVALID,NEW,ESTABLISHED,UNTRACKED CONFIRMED DNAT RETURN ACCEPT DROP REDIRECT MARK CONNMARK TPROXY CT
		PODNET_OUTBOUND_LOST PODNET_INBOUND_LOST PODNET_OUTBOUND_MARK_LO PODNET_DNS_ZONES_LOOKUPS PODNET_OUTBOUND_AWAY
		--to-ports --set-xmark --save-mark --restore-mark --nfmask --ctmask --on-port --on-ip --tproxy-mark --zone --zone-orig`)
}
