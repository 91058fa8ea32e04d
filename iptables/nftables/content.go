package nftables

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
)

// sum is the hash of a rule.
type sum = [sha256.Size]byte

// tally is the content of a set: the number of elements, and their hash in any order.
type tally struct {
	count int
	sum   sum
}

// content is the content of our table's chains and sets, by name without the generation.
type content struct {
	chains map[string][]sum
	sets   map[string]tally
}

// readContent reads the rules and elements of the chains and sets of o. It stops at a chain or set that holds more than limit does: then
// the table differs, whatever else it holds.
func readContent(ctx context.Context, ns *netns.NS, o outline, limit *content) (c content, err error) {
	c.sets = map[string]tally{}
	generation, _ := o.generation()
	c.chains, err = readRules(ctx, ns, o, func(chain string, n int) bool { return limit == nil || n <= len(limit.chains[chain]) })
	if err != nil {
		return c, err
	}
	for name := range o.sets {
		base := strings.TrimSuffix(name, generation)
		most := -1
		if limit != nil {
			most = limit.sets[base].count
		}
		if c.sets[base], err = readElements(ctx, ns, elementsOf(o.name, name), most); err != nil {
			return c, err
		}
	}
	return c, nil
}

// readRules reads the rules of each chain in order, as long as more allows the nth rule of a chain.
func readRules(ctx context.Context, ns *netns.NS, o outline, more func(chain string, n int) bool) (map[string][]sum, error) {
	out := map[string][]sum{}
	generation, _ := o.generation()
	err := list(ctx, ns, rulesOf(o.name), func(b []byte) error {
		chain := rawnetlink.Name(find(b, unix.NFTA_RULE_CHAIN))
		out[chain] = append(out[chain], sha256.Sum256(canonicalRule(b, generation)))
		if !more(chain, len(out[chain])) {
			return errTooMuch
		}
		return nil
	})
	return out, err
}

// readElements reads a set, at most so many elements; most < 0 means no limit.
func readElements(ctx context.Context, ns *netns.NS, set rawnetlink.Request, most int) (tally, error) {
	var all []string
	err := list(ctx, ns, set, func(b []byte) error {
		for _, e := range rawnetlink.Each(find(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			if most >= 0 && len(all) >= most {
				return errTooMuch
			}
			all = append(all, string(e))
		}
		return nil
	})
	slices.Sort(all)
	h := sha256.New()
	for _, e := range all {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(e))))
		h.Write([]byte(e))
	}
	return tally{len(all), sum(h.Sum(nil))}, err
}

func rulesOf(table string) rawnetlink.Request {
	return get(unix.NFT_MSG_GETRULE, rawnetlink.Text(unix.NFTA_RULE_TABLE, table))
}

func elementsOf(table, set string) rawnetlink.Request {
	return get(unix.NFT_MSG_GETSETELEM, rawnetlink.Text(unix.NFTA_SET_ELEM_LIST_TABLE, table), rawnetlink.Text(unix.NFTA_SET_ELEM_LIST_SET, set))
}

// canonicalRule returns a rule without what differs between equal rules: its table, handle and counters, and the generation of the
// sets that it uses.
func canonicalRule(rule []byte, generation string) (out []byte) {
	for kind, data := range rawnetlink.Each(rule) {
		switch kind {
		case unix.NFTA_RULE_TABLE, unix.NFTA_RULE_HANDLE, unix.NFTA_RULE_POSITION, rulePad:
		case unix.NFTA_RULE_EXPRESSIONS:
			for _, e := range rawnetlink.Each(data) {
				out = canonicalExpr(out, e, generation)
			}
		default:
			out = append(out, rawnetlink.Bytes(kind, data)...)
		}
	}
	return out
}

func canonicalExpr(out, e []byte, generation string) []byte {
	switch name := find(e, unix.NFTA_EXPR_NAME); rawnetlink.Name(name) {
	case "counter":
		return append(out, rawnetlink.Bytes(unix.NFTA_EXPR_NAME, name)...)
	case "lookup":
		out = append(out, rawnetlink.Bytes(unix.NFTA_EXPR_NAME, name)...)
		for kind, data := range rawnetlink.Each(find(e, unix.NFTA_EXPR_DATA)) {
			if kind == unix.NFTA_LOOKUP_SET {
				data = []byte(strings.TrimSuffix(rawnetlink.Name(data), generation))
			}
			out = append(out, rawnetlink.Bytes(kind, data)...)
		}
		return out
	}
	return append(out, rawnetlink.Bytes(unix.NFTA_LIST_ELEM, e)...)
}
