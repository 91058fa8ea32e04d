package conformance

import (
	"fmt"
	"net"
	"testing"

	nft "github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/test/kerneltest"
)

// world is the topology: the pod, what is around it, and a virtual machine behind it.
type world struct{ spaces map[string]*netns.NS }

func (w world) pod() *netns.NS { return w.spaces["pod"] }

// newWorld builds the topology for a pod that has addresses of the families.
func newWorld(t *testing.T, families string) world {
	t.Helper()
	return newWorldAround(t, kerneltest.New(t), families)
}

func newWorldAround(t *testing.T, pod *netns.NS, families string) world {
	t.Helper()
	out, vm := kerneltest.New(t), kerneltest.New(t)
	for _, ns := range []*netns.NS{pod, out, vm} {
		kerneltest.Sysctl(t, ns, "net/ipv4/conf/all/rp_filter", "0")
		kerneltest.Sysctl(t, ns, "net/ipv4/conf/default/rp_filter", "0")
	}
	kerneltest.Sysctl(t, pod, "net/ipv4/ip_unprivileged_port_start", "0")
	kerneltest.JoinByVeth(t, out, "w0", pod, "eth0")
	kerneltest.AddAddresses(t, out, "w0", "10.244.1.1/24", "fd00:10:244:1::1/64")
	if families != "6" {
		ipv4(t, pod, out, vm)
	}
	if families != "4" {
		kerneltest.AddAddresses(t, pod, "eth0", "fd00:10:244:1::5/64")
		kerneltest.AddRoute(t, pod, "::/0", "fd00:10:244:1::1")
	}
	for _, dst := range []string{
		"93.184.216.0/24", "10.96.0.0/12", "10.8.0.0/16", "169.254.169.254/32", "8.8.8.0/24",
		"fd00:99::/64", "fd00:10:96::/112", "fd00:8::/64", "2001:db8::/64",
	} {
		kerneltest.AddLocalRoute(t, out, dst)
	}
	catchAll(t, out)
	return world{spaces: map[string]*netns.NS{"pod": pod, "world": out, "vm": vm}}
}

// ipv4 gives the pod its IPv4 address, a second interface to the world, and the virtual machine.
func ipv4(t *testing.T, pod, out, vm *netns.NS) {
	t.Helper()
	kerneltest.AddAddresses(t, pod, "eth0", "10.244.1.5/24")
	kerneltest.AddRoute(t, pod, "0.0.0.0/0", "10.244.1.1")
	kerneltest.JoinByVeth(t, out, "w1", pod, "net1")
	kerneltest.AddAddresses(t, out, "w1", "192.168.50.1/24")
	kerneltest.AddAddresses(t, pod, "net1", "192.168.50.5/24")
	kerneltest.JoinByVeth(t, vm, "v0", pod, "k6t-eth0")
	kerneltest.AddAddresses(t, vm, "v0", "192.168.60.2/24")
	kerneltest.AddAddresses(t, pod, "k6t-eth0", "192.168.60.1/24")
	kerneltest.AddRoute(t, vm, "0.0.0.0/0", "192.168.60.1")
	kerneltest.AddRoute(t, out, "192.168.60.0/24", "10.244.1.5")
	kerneltest.Sysctl(t, pod, "net/ipv4/ip_forward", "1")
}

// catchAll sends whatever reaches the world to its one listener.
func catchAll(t *testing.T, out *netns.NS) {
	t.Helper()
	conn, err := nft.New(nft.WithNetNSFd(out.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	table := conn.AddTable(&nft.Table{Family: nft.TableFamilyINet, Name: "world"})
	chain := conn.AddChain(&nft.Chain{
		Table: table, Name: "catch", Type: nft.ChainTypeNAT, Hooknum: nft.ChainHookPrerouting, Priority: nft.ChainPriorityNATDest,
	})
	for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		conn.AddRule(&nft.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
			&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(7000)},
			&expr.Redir{RegisterProtoMin: 1, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED},
		}})
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
}

// listen opens all the listeners of the topology; the proxy's are transparent where TPROXY delivers to them.
func (w world) listen(t *testing.T, c configuration) {
	t.Helper()
	app := kerneltest.Owner{UID: 1000, GID: 1000}
	proxy := kerneltest.Owner{UID: int(c.spec.ProxyUID), GID: int(c.spec.ProxyGID)}
	transparent := c.spec.Mode == "TPROXY"
	if transparent {
		proxy.UID = 0
	}
	for _, port := range []int{22, 53, 3306, 8080, 9090, 9999} {
		w.tcp(t, "pod", app, false, "", port, "APP")
	}
	for _, port := range []int{15001, 15006, 15008, 15020, 15021, 15090, 16001, 16006, 16008} {
		w.tcp(t, "pod", proxy, transparent, "", port, "PROXY")
	}
	w.tcp(t, "world", app, false, "", 7000, "WORLD")
	for _, port := range []int{53, 9999} {
		w.udp(t, "pod", app, "0.0.0.0", port, "APP")
		w.udp(t, "pod", app, "::", port, "APP")
	}
	w.udp(t, "pod", app, "127.0.0.53", 53, "APP")
	w.udp(t, "world", app, "0.0.0.0", 7000, "WORLD")
	w.udp(t, "world", app, "::", 7000, "WORLD")
	// The proxy's resolver listens on loopback only.
	for _, host := range []string{"127.0.0.1", "::1"} {
		w.tcp(t, "pod", proxy, transparent, host, 15053, "PROXY")
		w.udp(t, "pod", proxy, host, 15053, "PROXY")
	}
}

func (w world) tcp(t *testing.T, space string, owner kerneltest.Owner, transparent bool, host string, port int, banner string) {
	t.Helper()
	l := kerneltest.ListenTCP(t, w.spaces[space], owner, transparent, net.JoinHostPort(host, fmt.Sprint(port)))
	go kerneltest.Answer(l, fmt.Sprintf("%s:%d", banner, port))
}

func (w world) udp(t *testing.T, space string, owner kerneltest.Owner, host string, port int, banner string) {
	t.Helper()
	kerneltest.ListenUDP(t, w.spaces[space], owner, net.JoinHostPort(host, fmt.Sprint(port)), fmt.Sprintf("%s:%d", banner, port))
}
