package upstream

import (
	"net"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Endpoint is a place to connect to.
type Endpoint struct {
	Network, Address string
	weight           uint64
	match            *structpb.Struct // chooses the transport socket
}

// assignment are the healthy endpoints of a cluster, by priority.
type assignment struct {
	priorities [][]Endpoint
}

// assign reads endpoints. An unhealthy one gets no traffic; one that cannot be reached this way is said.
func (c *Clusters) assign(name string, m *endpointv3.ClusterLoadAssignment) *assignment {
	c.board.Fields(name, m, "cluster_name", "endpoints", "policy")
	a := &assignment{}
	for _, locality := range m.GetEndpoints() {
		for len(a.priorities) <= int(locality.GetPriority()) {
			a.priorities = append(a.priorities, nil)
		}
		for _, e := range locality.GetLbEndpoints() {
			if s := e.GetHealthStatus(); s != corev3.HealthStatus_UNKNOWN && s != corev3.HealthStatus_HEALTHY && s != corev3.HealthStatus_DEGRADED {
				continue
			}
			network, address := Address(e.GetEndpoint().GetAddress())
			if network == "" {
				c.board.Unknown(name, "endpoint address "+e.GetEndpoint().GetAddress().String())
				continue
			}
			at := &a.priorities[locality.GetPriority()]
			*at = append(*at, Endpoint{
				Network: network, Address: address, weight: uint64(max(1, e.GetLoadBalancingWeight().GetValue())),
				match: e.GetMetadata().GetFilterMetadata()["envoy.transport_socket_match"],
			})
		}
	}
	return a
}

// Address returns a network and an address for package net; empty if it has none.
func Address(a *corev3.Address) (network, address string) {
	switch kind := a.GetAddress().(type) {
	case *corev3.Address_SocketAddress:
		return "tcp", net.JoinHostPort(kind.SocketAddress.GetAddress(), strconv.Itoa(int(kind.SocketAddress.GetPortValue())))
	case *corev3.Address_Pipe:
		return "unix", kind.Pipe.GetPath()
	}
	return "", ""
}

// pick takes endpoints in turn, each as often as its weight says, of the first priority that has any.
func (a *assignment) pick(turn uint64) (Endpoint, bool) {
	if a == nil {
		return Endpoint{}, false
	}
	for _, endpoints := range a.priorities {
		var total uint64
		for _, e := range endpoints {
			total += e.weight
		}
		if total == 0 {
			continue
		}
		turn %= total
		for _, e := range endpoints {
			if turn < e.weight {
				return e, true
			}
			turn -= e.weight
		}
	}
	return Endpoint{}, false
}
