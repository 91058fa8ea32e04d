package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// ErrOwned means that a process of the pod owns our table (NFT_TABLE_F_OWNER): no other process can change or delete it.
var ErrOwned = errors.New("the table is owned by a process of the pod, and no other process can change or delete it until that one ends")

const (
	tableFlagDormant = 1
	// maxSets is more than two generations of our sets.
	maxSets = 64
)

// outline is our table without rules and elements: the attributes of the table, its chains and sets as the kernel returns them,
// without names, handles and padding. Equal outlines mean equal tables, rules and elements aside.
type outline struct {
	name   string            // of the table
	table  string            // empty if there is no table
	chains map[string]string // chains with our names
	sets   map[string]string // by full name, with the generation
	// foreign reports whether there is more: chains with other names, objects, flowtables, too many sets.
	foreign bool
	// surplus reports whether the second table is there beside the first one, and can be deleted.
	surplus bool
}

func (o outline) exists() bool { return o.table != "" }

func (o outline) flags() uint32 { return tableFlags([]byte(o.table)) }

func tableFlags(table []byte) uint32 { return rawnetlink.BigEndian(find(table, unix.NFTA_TABLE_FLAGS)) }

// owned reports whether a process of the pod owns the table: then it holds nothing of ours.
func (o outline) owned() bool { return o.flags()&rawnetlink.TableOwner != 0 }

// present reports whether a table of ours is there.
func (o outline) present() bool { return o.exists() && !o.owned() || o.surplus }

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

// readOutline reads our table: the second one while a process of the pod owns the first.
func readOutline(ctx context.Context, ns *netns.NS) (outline, error) {
	o, err := readTable(ctx, ns, iptables.TableName)
	if err == nil && o.owned() {
		return readTable(ctx, ns, iptables.SecondTableName)
	}
	return o, err
}

// readTable reads a table and chains by name. A dump would also return everything that others have in the namespace.
func readTable(ctx context.Context, ns *netns.NS, name string) (o outline, err error) {
	o.name = name
	table := rawnetlink.Text(unix.NFTA_TABLE_NAME, name) // NFTA_CHAIN_TABLE is the same
	requests := []rawnetlink.Request{get(unix.NFT_MSG_GETTABLE, table)}
	for _, name := range iptables.ChainNames() {
		requests = append(requests, get(unix.NFT_MSG_GETCHAIN, table, rawnetlink.Text(unix.NFTA_CHAIN_NAME, name)))
	}
	requests = append(requests, get(unix.NFT_MSG_GETTABLE, rawnetlink.Text(unix.NFTA_TABLE_NAME, iptables.SecondTableName)))
	answers, err := ask(ctx, ns, requests...)
	if err != nil {
		return o, fmt.Errorf("look for table %s: %w", name, err)
	}
	second := answers[len(answers)-1]
	o.surplus = name != iptables.SecondTableName && second != nil && tableFlags(second)&rawnetlink.TableOwner == 0
	if answers[0] == nil {
		return o, nil
	}
	o.table, o.chains = without(answers[0], unix.NFTA_TABLE_NAME, tableHandle, tablePad), map[string]string{}
	for i, name := range iptables.ChainNames() {
		if answers[i+1] != nil {
			o.chains[name] = without(answers[i+1], unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, unix.NFTA_CHAIN_HANDLE, unix.NFTA_CHAIN_PAD)
		}
	}
	err = rawnetlink.Uninterrupted(func() (err error) {
		o.sets, err = readSets(ctx, ns, name)
		return err
	})
	// What cannot be read is not ours.
	o.foreign = err != nil || int(rawnetlink.BigEndian(find(answers[0], unix.NFTA_TABLE_USE))) != len(o.chains)+len(o.sets)
	return o, timedOut(ctx, err)
}

func readSets(ctx context.Context, ns *netns.NS, table string) (map[string]string, error) {
	sets := map[string]string{}
	err := list(ctx, ns, get(unix.NFT_MSG_GETSET, rawnetlink.Text(unix.NFTA_SET_TABLE, table)), func(b []byte) error {
		if len(sets) == maxSets {
			return errTooMuch
		}
		sets[rawnetlink.Name(find(b, unix.NFTA_SET_NAME))] = without(b, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME, setHandle, setPad, setCount)
		return nil
	})
	return sets, err
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

// without returns a message's attributes except those of some kinds.
func without(b []byte, kinds ...uint16) string {
	var out strings.Builder
	for kind, data := range rawnetlink.Each(b) {
		if !slices.Contains(kinds, kind) {
			out.Write(rawnetlink.Bytes(kind, data))
		}
	}
	return out.String()
}
