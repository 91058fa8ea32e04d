package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// ErrOwned means that a process of the pod owns our table (NFT_TABLE_F_OWNER): no other process can change or delete it.
var ErrOwned = errors.New("the table is owned by a process of the pod, and no other process can change or delete it until that one ends")

const (
	tableFlagDormant = 1
	tableFlagOwner   = 2
	// maxSets is more than two generations of our sets.
	maxSets = 64
)

// outline is our table without rules and elements: the attributes of the table, its chains and sets as the kernel returns them,
// without names, handles and padding. Equal outlines mean equal tables, rules and elements aside.
type outline struct {
	table  string            // empty if there is no table
	chains map[string]string // chains with our names
	sets   map[string]string // by full name, with the generation
	// foreign reports whether there is more: chains with other names, objects, flowtables, too many sets.
	foreign bool
}

func (o outline) exists() bool { return o.table != "" }

func (o outline) flags() uint32 { return number(find([]byte(o.table), unix.NFTA_TABLE_FLAGS)) }

// generation returns the suffix of all set names. ok is false if they differ; our transactions never leave them so.
func (o outline) generation() (suffix string, ok bool) {
	for i, name := range slices.Sorted(maps.Keys(o.sets)) {
		this := strings.TrimPrefix(name, baseName(name))
		if i > 0 && this != suffix {
			return "", false
		}
		suffix = this
	}
	return suffix, true
}

// ofTable is a request about our table.
func ofTable(kind uint16) request {
	return request{kind: kind, attrs: named(nil, unix.NFTA_TABLE_NAME, iptables.TableName)}
}

// outline reads our table and chains by name. A dump would also return everything that others have in the namespace.
func (s *socket) outline(ctx context.Context) (o outline, err error) {
	requests := []request{ofTable(unix.NFT_MSG_GETTABLE)}
	for _, name := range iptables.ChainNames() {
		r := ofTable(unix.NFT_MSG_GETCHAIN)
		r.attrs = named(r.attrs, unix.NFTA_CHAIN_NAME, name)
		requests = append(requests, r)
	}
	answers, err := s.ask(ctx, requests...)
	if err != nil {
		return o, fmt.Errorf("look for table %s: %w", iptables.TableName, err)
	}
	if answers[0] == nil {
		return o, nil
	}
	o = outline{table: without(answers[0], unix.NFTA_TABLE_NAME, tableHandle, tablePad), chains: map[string]string{}}
	for i, name := range iptables.ChainNames() {
		if answers[i+1] != nil {
			o.chains[name] = without(answers[i+1], unix.NFTA_CHAIN_NAME, unix.NFTA_CHAIN_HANDLE, unix.NFTA_CHAIN_PAD)
		}
	}
	err = o.unreadable(ctx, rawnetlink.Uninterrupted(func() error { return o.addSets(ctx, s) }))
	o.foreign = o.foreign || int(number(find(answers[0], unix.NFTA_TABLE_USE))) != len(o.chains)+len(o.sets)
	return o, err
}

func (o *outline) addSets(ctx context.Context, s *socket) error {
	o.sets = map[string]string{}
	return s.list(ctx, unix.NFT_MSG_GETSET, named(nil, unix.NFTA_SET_TABLE, iptables.TableName), func(b []byte) error {
		if len(o.sets) == maxSets {
			return errTooMuch
		}
		o.sets[text(find(b, unix.NFTA_SET_NAME))] = without(b, unix.NFTA_SET_NAME, setHandle, setPad, setCount)
		return nil
	})
}

// Attributes of nf_tables.h that golang.org/x/sys/unix does not name. setCount is left out: elements are counted when they are read.
const (
	tableHandle   = 4
	tablePad      = 5
	tableUserdata = 6
	tableOwner    = 7
	chainFlags    = 10
	chainUserdata = 12
	setPad        = 14
	setHandle     = 16
	setCount      = 20
	rulePad       = 9
)

// unreadable marks a table that cannot be read as foreign. Only the end of ctx stays an error.
func (o *outline) unreadable(ctx context.Context, err error) error {
	o.foreign = o.foreign || err != nil
	return ctx.Err()
}

// without returns a message's attributes except those of some kinds.
func without(b []byte, kinds ...uint16) string {
	var out strings.Builder
	for a := range each(b) {
		if !slices.Contains(kinds, a.kind) {
			out.Write(padded(a.raw))
		}
	}
	return out.String()
}

func padded(raw []byte) []byte {
	if more := -len(raw) & 3; more > 0 {
		return append(slices.Clip(raw), make([]byte, more)...)
	}
	return raw
}
