package interpreter

import (
	"encoding/binary"
	"fmt"
	"testing"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// seen is a packet after the rules at a hook.
type seen struct {
	port, zone     uint16
	mark, connMark uint32
	translated     bool
}

// observer is a table in the pod that says how packets leave the rules, in a set for each hook.
type observer struct {
	conn *nft.Conn
	sets map[iptables.Hook]*nft.Set
}

// before prepares packets for the rules: kernel's own answers are dropped, and packets get the marks that their headers name.
const before = `table inet before {
	chain answers { type filter hook output priority -500; meta l4proto { tcp, udp } ip ttl 64 drop; meta l4proto { tcp, udp } ip6 hoplimit 64 drop; }
	chain lost { type filter hook prerouting priority -400; iif lo return; tcp window 64 notrack; }
	chain lose { type filter hook output priority -400; tcp window 64 notrack; }
	chain marked { type filter hook prerouting priority -500; iif lo return; %s }
	chain incoming { type filter hook prerouting priority -190; iif lo return; %[2]s }
	chain outgoing { type filter hook output priority -190; %[2]s }
}`

func newObserver(t *testing.T, pod *netns.NS) *observer {
	t.Helper()
	var marks, connMarks string
	for _, m := range []int{1336, 1337, 1338, 1339} {
		marks += fmt.Sprintf("tcp urgptr %d meta mark set %[1]d; ", m)
		connMarks += fmt.Sprintf("tcp window %d ct mark set %[1]d; ", m)
	}
	kerneltest.Shell(t, pod, "nft -f -", fmt.Sprintf(before, marks, connMarks))
	kerneltest.Sysctl(t, pod, "net/netfilter/nf_conntrack_tcp_be_liberal", "1") // the rules have brought the module that has it
	conn, err := nft.New(nft.WithNetNSFd(pod.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	o := &observer{conn: conn, sets: map[iptables.Hook]*nft.Set{}}
	table := conn.AddTable(&nft.Table{Family: nft.TableFamilyINet, Name: "after"})
	for hook, number := range map[iptables.Hook]*nft.ChainHook{iptables.Output: nft.ChainHookOutput, iptables.Prerouting: nft.ChainHookPrerouting} {
		set := &nft.Set{Table: table, Name: string(hook), KeyType: nft.SetDatatype{Name: "packet", Bytes: 24}, Dynamic: true, Size: 1 << 16}
		if err := conn.AddSet(set, nil); err != nil {
			t.Fatal(err)
		}
		o.sets[hook] = set
		chain := conn.AddChain(&nft.Chain{Table: table, Name: string(hook), Type: nft.ChainTypeFilter, Hooknum: number, Priority: nft.ChainPriorityRef(300)})
		for _, tracked := range []bool{true, false} {
			conn.AddRule(&nft.Rule{Table: table, Chain: chain, Exprs: record(set, tracked)})
		}
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return o
}

// record adds a packet to a set. A packet without a connection breaks off the rule for packets with one.
func record(set *nft.Set, tracked bool) []expr.Any {
	const id, port, mark, connMark, zone, status = 8, 9, 10, 11, 12, 13 // registers of four bytes
	out := []expr.Any{
		&expr.Payload{DestRegister: id, Base: expr.PayloadBaseTransportHeader, Offset: 8, Len: 4},
		&expr.Payload{DestRegister: port, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: mark},
	}
	if tracked {
		out = append(out, &expr.Ct{Key: expr.CtKeyMARK, Register: connMark}, &expr.Ct{Key: expr.CtKeyZONE, Register: zone}, &expr.Ct{Key: expr.CtKeySTATUS, Register: status})
	} else {
		out = append(out, &expr.Immediate{Register: connMark, Data: make([]byte, 12)})
	}
	return append(out, &expr.Dynset{SrcRegKey: id, SetName: set.Name, SetID: set.ID, Operation: uint32(unix.NFT_DYNSET_OP_ADD)}, &expr.Verdict{Kind: expr.VerdictReturn})
}

// read returns the packets that have passed the rules at a hook, by their IDs.
func (o *observer) read(t *testing.T, hook iptables.Hook) map[uint32]seen {
	t.Helper()
	elements, err := o.conn.GetSetElements(o.sets[hook])
	if err != nil {
		t.Fatal(err)
	}
	out := map[uint32]seen{}
	for _, e := range elements {
		own := binary.NativeEndian
		out[binary.BigEndian.Uint32(e.Key)] = seen{
			port: binary.BigEndian.Uint16(e.Key[4:]), mark: own.Uint32(e.Key[8:]), connMark: own.Uint32(e.Key[12:]), zone: own.Uint16(e.Key[16:]),
			translated: own.Uint32(e.Key[20:])&iptables.Translated != 0,
		}
	}
	return out
}

func linkOf(t *testing.T, ns *netns.NS, name string) (link netlink.Link) {
	t.Helper()
	if err := ns.Inside(func() (err error) {
		link, err = netlink.LinkByName(name)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return link
}

// routes returns commands that make everything reachable by an interface. eth0 comes first.
func routes(name string, metric int) string {
	if name == "eth0" {
		metric = 1
	}
	return fmt.Sprintf("ip route add default dev %s metric %d\nip -6 route add default dev %[1]s metric %[2]d\n", name, metric)
}
