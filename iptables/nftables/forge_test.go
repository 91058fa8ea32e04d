package nftables

import (
	"encoding/binary"
	"os/exec"
	"slices"
	"strings"
	"testing"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// What a process of a pod with NET_ADMIN can write into its own namespace.

// rawMessage is one that no library would make.
type rawMessage struct {
	kind, flags uint16
	attrs       []byte
}

// forgeRaw commits messages in one transaction.
func forgeRaw(t *testing.T, ns *netns.NS, messages ...rawMessage) {
	t.Helper()
	fd, err := ns.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd) //nolint:errcheck // the test is over
	var out []byte
	put := func(kind, flags uint16, family byte, resource uint16, attrs []byte) {
		out = binary.NativeEndian.AppendUint32(out, uint32(unix.SizeofNlMsghdr+rawnetlink.SizeofNfgenmsg+len(attrs)))
		out = binary.NativeEndian.AppendUint16(out, kind)
		out = binary.NativeEndian.AppendUint16(out, unix.NLM_F_REQUEST|flags)
		out = append(out, 0, 0, 0, 0, 0, 0, 0, 0, family, unix.NFNETLINK_V0)
		out = append(binary.BigEndian.AppendUint16(out, resource), attrs...)
	}
	put(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil)
	for _, m := range messages {
		put(unix.NFNL_SUBSYS_NFTABLES<<8|m.kind, m.flags, unix.NFPROTO_INET, 0, m.attrs)
	}
	put(unix.NFNL_MSG_BATCH_END, unix.NLM_F_ACK, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 2*len(out)+1<<20); err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendto(fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT)
		if err != nil {
			return // all is read
		}
		if kind := binary.NativeEndian.Uint16(buffer[4:]); n >= unix.SizeofNlMsghdr+4 && kind == unix.NLMSG_ERROR {
			if number := int32(binary.NativeEndian.Uint32(buffer[unix.SizeofNlMsghdr:])); number < 0 {
				t.Fatal(unix.Errno(-number))
			}
		}
	}
}

func add(b []byte, kind uint16, data []byte) []byte {
	return append(b, rawnetlink.Bytes(kind, data)...)
}

func named(b []byte, kind uint16, name string) []byte {
	return append(b, rawnetlink.Text(kind, name)...)
}

func ofSet(set string) []byte {
	return named(named(nil, unix.NFTA_SET_ELEM_LIST_TABLE, iptables.TableName), unix.NFTA_SET_ELEM_LIST_SET, set)
}

func forgedSet(name string, keyType, keyLen uint32, userdata []byte) rawMessage {
	b := named(named(nil, unix.NFTA_SET_TABLE, iptables.TableName), unix.NFTA_SET_NAME, name)
	for kind, n := range map[uint16]uint32{unix.NFTA_SET_KEY_TYPE: keyType, unix.NFTA_SET_KEY_LEN: keyLen, unix.NFTA_SET_ID: 1} {
		b = add(b, kind, binary.BigEndian.AppendUint32(nil, n))
	}
	if userdata != nil {
		b = add(b, unix.NFTA_SET_USERDATA, userdata)
	}
	return rawMessage{unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, b}
}

func forgedElements(set string, userdata []byte, keys ...[]byte) rawMessage {
	var list []byte
	for _, key := range keys {
		e := add(nil, unix.NFTA_SET_ELEM_KEY|unix.NLA_F_NESTED, add(nil, unix.NFTA_DATA_VALUE, key))
		if userdata != nil {
			e = add(e, unix.NFTA_SET_ELEM_USERDATA, userdata)
		}
		list = add(list, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, e)
	}
	return rawMessage{unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, add(ofSet(set), unix.NFTA_SET_ELEM_LIST_ELEMENTS|unix.NLA_F_NESTED, list)}
}

// forgedRule is one that accepts everything.
func forgedRule(chain string, userdata []byte) rawMessage {
	code := add(nil, unix.NFTA_VERDICT_CODE, []byte{0, 0, 0, 1})
	data := add(nil, unix.NFTA_IMMEDIATE_DREG, []byte{0, 0, 0, 0})
	data = add(data, unix.NFTA_IMMEDIATE_DATA|unix.NLA_F_NESTED, add(nil, unix.NFTA_DATA_VERDICT|unix.NLA_F_NESTED, code))
	e := add(named(nil, unix.NFTA_EXPR_NAME, "immediate"), unix.NFTA_EXPR_DATA|unix.NLA_F_NESTED, data)
	b := named(named(nil, unix.NFTA_RULE_TABLE, iptables.TableName), unix.NFTA_RULE_CHAIN, chain)
	b = add(b, unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, add(nil, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, e))
	if userdata != nil {
		b = add(b, unix.NFTA_RULE_USERDATA, userdata)
	}
	return rawMessage{unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE | unix.NLM_F_APPEND, b}
}

// forgedChain is a chain of a table, which is made with it.
func forgedChain(table, name string) rawMessage {
	return rawMessage{unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, named(named(nil, unix.NFTA_CHAIN_TABLE, table), unix.NFTA_CHAIN_NAME, name)}
}

func forgedTable(name string) rawMessage {
	return rawMessage{unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, named(nil, unix.NFTA_TABLE_NAME, name)}
}

// script has nft change our table, which is T in it.
func script(text string) func(*testing.T, *netns.NS) {
	return func(t *testing.T, ns *netns.NS) {
		t.Helper()
		tool := kerneltest.ProgramPath(t, "nft")
		err := ns.Inside(func() error {
			cmd := exec.CommandContext(t.Context(), tool, "-f", "-")
			cmd.Stdin = strings.NewReader(strings.ReplaceAll(text, "T", "inet "+iptables.TableName))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("nft: %s", out)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// raw commits messages.
func raw(messages ...rawMessage) func(*testing.T, *netns.NS) {
	return func(t *testing.T, ns *netns.NS) { t.Helper(); forgeRaw(t, ns, messages...) }
}

// remade makes the table of want anew with its sets changed.
func remade(want iptables.Ruleset, change func(*nft.Set)) func(*testing.T, *netns.NS) {
	return func(t *testing.T, ns *netns.NS) {
		t.Helper()
		table := ownTable()
		mustTransact(t, ns, func(c *nft.Conn) error {
			c.DelTable(table)
			c.CreateTable(table)
			for _, s := range want.Sets {
				set := &nft.Set{Table: table, Name: s.Name + ".0", KeyType: nft.TypeInetService}
				change(set)
				var ports []nft.SetElement
				for _, r := range s.Ranges {
					ports = append(ports, nft.SetElement{Key: binary.BigEndian.AppendUint16(nil, r.First)})
				}
				if err := c.AddSet(set, ports); err != nil {
					return err
				}
			}
			return c.Flush()
		})
		mustFill(t, ns, want.Chains, nil)
	}
}

// altered replaces the first rule of a chain that has an expression of change's type with one that change has altered.
func altered[E expr.Any](want iptables.Ruleset, change func(E) bool) func(*testing.T, *netns.NS) {
	return func(t *testing.T, ns *netns.NS) {
		t.Helper()
		table := ownTable()
		done := false
		mustTransact(t, ns, func(c *nft.Conn) error {
			for _, chain := range want.Chains {
				at := &nft.Chain{Table: table, Name: chain.Name}
				c.FlushChain(at)
				for _, r := range chain.Rules {
					exprs := encode(r, ".0")
					done = done || slices.ContainsFunc(exprs, func(e expr.Any) bool {
						one, ok := e.(E)
						return ok && change(one)
					})
					c.AddRule(&nft.Rule{Table: table, Chain: at, Exprs: exprs, UserData: ruleUserdata(r)})
				}
			}
			return c.Flush()
		})
		if !done {
			t.Fatal("no rule has what was to be altered")
		}
	}
}

func mustTransact(t *testing.T, ns *netns.NS, f func(*nft.Conn) error) {
	t.Helper()
	if err := transact(ns, f); err != nil {
		t.Fatal(err)
	}
}

// transact makes a transaction by the library, as somebody else would.
func transact(ns *netns.NS, f func(*nft.Conn) error) error {
	conn, err := nft.New(nft.WithNetNSFd(ns.Fd()))
	if err != nil {
		return err
	}
	return f(conn)
}

// ownTable is our table in messages of the library.
func ownTable() *nft.Table { return &nft.Table{Family: nft.TableFamilyINet, Name: iptables.TableName} }

// mustFill fills chains, after emptying those in there.
func mustFill(t *testing.T, ns *netns.NS, chains []iptables.Chain, there map[string]string) {
	t.Helper()
	filled, err := fill(".0", chains, there, nil)
	if err == nil {
		err = filled.commit(t.Context(), ns, anyGeneration)
	}
	if err != nil {
		t.Fatal(err)
	}
}
