package nftables

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/iptables"
)

// tally is the content of a chain or set: the number of rules or elements, and their hash. The order of rules matters, that of elements
// does not.
type tally struct {
	count int
	sum   [sha256.Size]byte
}

// content is the content of our table's chains and sets, by name without the generation.
type content struct{ chains, sets map[string]tally }

// content reads the rules and elements of the chains and sets of o. It stops at a chain or set that holds more than limit does: then
// the table differs, whatever else it holds.
func (s *socket) content(ctx context.Context, o outline, limit *content) (c content, err error) {
	c = content{chains: map[string]tally{}, sets: map[string]tally{}}
	generation, _ := o.generation()
	if c.chains, err = s.rules(ctx, generation, limit); err != nil {
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

// sum hashes a chain's rules in order.
type sum struct {
	count int
	hash  hash.Hash
}

func (h *sum) add(b []byte) {
	h.count++
	h.hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
	h.hash.Write(b)
}

func (h *sum) tally() tally { return tally{h.count, [sha256.Size]byte(h.hash.Sum(nil))} }

func (s *socket) rules(ctx context.Context, generation string, limit *content) (map[string]tally, error) {
	sums := map[string]*sum{}
	err := s.list(ctx, unix.NFT_MSG_GETRULE, named(nil, unix.NFTA_RULE_TABLE, iptables.TableName), func(b []byte) error {
		chain := text(find(b, unix.NFTA_RULE_CHAIN))
		if sums[chain] == nil {
			sums[chain] = &sum{hash: sha256.New()}
		}
		sums[chain].add(canonicalRule(b, generation))
		if limit != nil && sums[chain].count > limit.chains[chain].count {
			return errTooMuch
		}
		return nil
	})
	out := map[string]tally{}
	for chain, h := range sums {
		out[chain] = h.tally()
	}
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
	h := sum{hash: sha256.New()}
	for _, e := range all {
		h.add([]byte(e))
	}
	return h.tally(), err
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
