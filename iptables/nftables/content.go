package nftables

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/iptables"
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

// content reads the rules and elements of the chains and sets of o. It stops at a chain or set that holds more than limit does: then
// the table differs, whatever else it holds.
func (s *socket) content(ctx context.Context, o outline, limit *content) (c content, err error) {
	c.sets = map[string]tally{}
	generation, _ := o.generation()
	c.chains, err = s.rules(ctx, generation, func(chain string, n int) bool { return limit == nil || n <= len(limit.chains[chain]) })
	if err != nil {
		return c, err
	}
	for name := range o.sets {
		base := strings.TrimSuffix(name, generation)
		most := -1
		if limit != nil {
			most = limit.sets[base].count
		}
		if c.sets[base], err = s.elements(ctx, name, most); err != nil {
			return c, err
		}
	}
	return c, nil
}

// rules reads the rules of each chain in order, as long as more allows the nth rule of a chain.
func (s *socket) rules(ctx context.Context, generation string, more func(chain string, n int) bool) (map[string][]sum, error) {
	out := map[string][]sum{}
	err := s.list(ctx, unix.NFT_MSG_GETRULE, named(nil, unix.NFTA_RULE_TABLE, iptables.TableName), func(b []byte) error {
		chain := text(find(b, unix.NFTA_RULE_CHAIN))
		out[chain] = append(out[chain], sha256.Sum256(canonicalRule(b, generation)))
		if !more(chain, len(out[chain])) {
			return errTooMuch
		}
		return nil
	})
	return out, err
}

// elements reads a set, at most so many elements; most < 0 means no limit.
func (s *socket) elements(ctx context.Context, set string, most int) (tally, error) {
	var all []string
	err := s.list(ctx, unix.NFT_MSG_GETSETELEM, ofSet(set), func(b []byte) error {
		for e := range each(find(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			if most >= 0 && len(all) >= most {
				return errTooMuch
			}
			all = append(all, string(e.data))
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

func ofSet(set string) []byte {
	return named(named(nil, unix.NFTA_SET_ELEM_LIST_TABLE, iptables.TableName), unix.NFTA_SET_ELEM_LIST_SET, set)
}

// canonicalRule returns a rule without what differs between equal rules: its handle, its counters, and the generation of the
// sets that it uses.
func canonicalRule(rule []byte, generation string) (out []byte) {
	for a := range each(rule) {
		switch a.kind {
		case unix.NFTA_RULE_HANDLE, unix.NFTA_RULE_POSITION, rulePad:
		case unix.NFTA_RULE_EXPRESSIONS:
			for e := range each(a.data) {
				out = canonicalExpr(out, e, generation)
			}
		default:
			out = append(out, padded(a.raw)...)
		}
	}
	return out
}

func canonicalExpr(out []byte, e attr, generation string) []byte {
	switch text(find(e.data, unix.NFTA_EXPR_NAME)) {
	case "counter":
		return named(out, unix.NFTA_EXPR_NAME, "counter")
	case "lookup":
		out = named(out, unix.NFTA_EXPR_NAME, "lookup")
		for a := range each(find(e.data, unix.NFTA_EXPR_DATA)) {
			if a.kind == unix.NFTA_LOOKUP_SET {
				out = named(out, unix.NFTA_LOOKUP_SET, strings.TrimSuffix(text(a.data), generation))
			} else {
				out = append(out, padded(a.raw)...)
			}
		}
		return out
	}
	return append(out, padded(e.raw)...)
}
