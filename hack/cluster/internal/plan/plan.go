// Package plan is the cluster's address plan and its names: data, no I/O.
package plan

import (
	"net"
	"net/netip"
	"strconv"
)

// Dual is one range, or one address with the length of its network, in each family.
type Dual struct {
	V4, V6 netip.Prefix
}

// String joins both families as Kubernetes' flags want them, IPv4 first.
func (d Dual) String() string { return d.V4.String() + "," + d.V6.String() }

// Addrs joins both addresses without the lengths.
func (d Dual) Addrs() string { return d.V4.Addr().String() + "," + d.V6.Addr().String() }

// Both lists the two families, IPv4 first.
func (d Dual) Both() []netip.Prefix { return []netip.Prefix{d.V4, d.V6} }

// Masked is the network of an address.
func (d Dual) Masked() Dual { return Dual{V4: d.V4.Masked(), V6: d.V6.Masked()} }

// Node is one node.
type Node struct {
	// Name is the node's name and the host name in its UTS namespace.
	Name string
	// Addr is the node's address in the network of the control plane and all nodes, Pods the part of the cluster's range that the node gets.
	Addr, Pods Dual
	// Cgroup is the root of the cgroups of the node's pods, below the root of each hierarchy.
	Cgroup string
	// prefix begins the names of further nodes' daemons and directories. The first node's have none.
	prefix string
}

// Own returns the node's name for its daemon, or file: "kubelet" on the first node, "node2-kubelet" on the second.
func (n Node) Own(name string) string { return n.prefix + name }

// Plan says who has which address. Everything in it exists only inside the cluster's own network namespaces.
type Plan struct {
	// Nodes are all that a cluster may have: the first ones of them are there.
	Nodes []Node
	// ControlPlane is the address of the API server in the network of the nodes.
	ControlPlane Dual
	// Pods is the cluster's range.
	Pods Dual
	// Services is the range of the cluster addresses.
	Services Dual
	// World stands for "outside": the control plane's namespace answers for every address of it.
	World Dual
	// APIPort is where the API server listens.
	APIPort uint16
}

// Default is the plan of a cluster whose first node has the cgroup. Clusters of a machine may have the same addresses: nothing joins their namespaces.
func Default(cgroup string) Plan {
	return Plan{
		Nodes: []Node{
			{"node1", dual("172.30.0.11/24", "fd00:172:30::11/64"), dual("10.244.0.0/24", "fd00:10:244::/64"), cgroup, ""},
			{"node2", dual("172.30.0.12/24", "fd00:172:30::12/64"), dual("10.244.1.0/24", "fd00:10:244:1::/64"), cgroup + ".node2", "node2-"},
			{"node3", dual("172.30.0.13/24", "fd00:172:30::13/64"), dual("10.244.2.0/24", "fd00:10:244:2::/64"), cgroup + ".node3", "node3-"},
		},
		ControlPlane: dual("172.30.0.1/24", "fd00:172:30::1/64"),
		Pods:         dual("10.244.0.0/16", "fd00:10:244::/56"),
		Services:     dual("10.96.0.0/16", "fd00:10:96::/112"),
		World:        dual("203.0.113.0/24", "2001:db8:1::/64"),
		APIPort:      6443,
	}
}

// APIServer is the URL that works in both namespaces.
func (p Plan) APIServer() string {
	return "https://" + net.JoinHostPort(p.ControlPlane.V4.Addr().String(), strconv.Itoa(int(p.APIPort)))
}

// FirstService is the cluster address of the service "kubernetes".
func (p Plan) FirstService() netip.Addr { return p.Services.V4.Addr().Next() }

// DNS is the cluster address in pods' resolv.conf. Nothing answers there unless a test puts a server behind it.
func (p Plan) DNS() netip.Addr {
	a := p.Services.V4.Addr().As4()
	a[3] = 10
	return netip.AddrFrom4(a)
}

// dual is for the constants above: a wrong one fails every test.
func dual(v4, v6 string) Dual {
	return Dual{V4: netip.MustParsePrefix(v4), V6: netip.MustParsePrefix(v6)}
}
