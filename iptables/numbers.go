package iptables

// Zones of connection tracking separate two exchanges that may have the same addresses and ports: the proxy's with the real
// resolver, and the application's with the proxy (istio/istio#33469).
const (
	zoneUpstream = 1
	zoneLocal    = 2
)

const (
	dnsPort      = 53
	resolverPort = 15053 // where the proxy's agent answers, on loopback only
	// refusedPort is a port without a listener, so that a connection that is redirected there is refused at once. It is tcpmux (RFC 1078),
	// which is not in use any more.
	refusedPort = 1
)

// The first mark is Istio's number, because its proxy sets it itself. The routing table is ours alone: Istio's is 133, and a rule or
// route there may be Istio's.
const (
	markDiverted = 1337 // delivered to the proxy; the proxy also sets it on what it sends with a client's address as source
	markSelf     = 1338 // the proxy reaching its own pod

	// RouteMark and RouteTable are Routing's.
	RouteMark  = markDiverted
	RouteTable = 15006
)
