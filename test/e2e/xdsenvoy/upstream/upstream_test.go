package upstream

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"istio-pod-network-controller/test/e2e/xdsenvoy/discovery"
	"istio-pod-network-controller/test/e2e/xdsenvoy/notice"
	"istio-pod-network-controller/test/e2e/xdsenvoy/trust"
)

func apply(t *testing.T, c *Clusters, typeURL, name string, m proto.Message, text string) error {
	t.Helper()
	if err := protojson.Unmarshal([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	packed, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return c.Apply(discovery.Change{Type: typeURL, Set: map[string]*anypb.Any{name: packed}})
}

func newClusters() *Clusters {
	return NewClusters(trust.NewSecrets(func(string) {}), &notice.Board{Log: slog.New(slog.DiscardHandler)})
}

const inMesh = `{"name": "outbound|80||echo", "type": "EDS", "edsClusterConfig": {"serviceName": "echo"}, "transportSocketMatches": [
  {"name": "tlsMode-istio", "match": {"tlsMode": "istio"}, "transportSocket": {"name": "envoy.transport_sockets.tls", "typedConfig": {
    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", "sni": "outbound_.80_._.echo", "commonTlsContext": {"alpnProtocols": ["istio"]}}}},
  {"name": "tlsMode-disabled", "match": {}, "transportSocket": {"name": "envoy.transport_sockets.raw_buffer"}}]}`

func TestPick_takesHealthyEndpointsInTurn(t *testing.T) {
	c := newClusters()
	if err := apply(t, c, discovery.Clusters, "outbound|80||echo", &clusterv3.Cluster{}, inMesh); err != nil {
		t.Fatal(err)
	}
	if wanted := c.Wanted(); len(wanted) != 1 || wanted[0] != "echo" || len(c.Missing()) != 1 {
		t.Errorf("wanted are %v, missing %v", wanted, c.Missing())
	}
	err := apply(t, c, discovery.Endpoints, "echo", &endpointv3.ClusterLoadAssignment{}, `{"clusterName": "echo", "endpoints": [
	  {"priority": 1, "lbEndpoints": [{"endpoint": {"address": {"socketAddress": {"address": "10.0.0.9", "portValue": 80}}}}]},
	  {"lbEndpoints": [
	    {"endpoint": {"address": {"socketAddress": {"address": "10.0.0.1", "portValue": 80}}}, "metadata": {"filterMetadata": {"envoy.transport_socket_match": {"tlsMode": "istio"}}}},
	    {"endpoint": {"address": {"socketAddress": {"address": "10.0.0.2", "portValue": 80}}}, "loadBalancingWeight": 3},
	    {"endpoint": {"address": {"socketAddress": {"address": "10.0.0.3", "portValue": 80}}}, "healthStatus": "UNHEALTHY"},
	    {"endpoint": {"address": {"socketAddress": {"address": "10.0.0.4", "portValue": 80}}}, "healthStatus": "DRAINING"}]}]}`)
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := c.Find(t.Context(), "outbound|80||echo")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for range 40 {
		e, err := cluster.Pick(netip.AddrPort{})
		if err != nil {
			t.Fatal(err)
		}
		seen[e.Address]++
		if secured := cluster.Secured(e); secured != (e.Address == "10.0.0.1:80") {
			t.Errorf("%s is secured: %v", e.Address, secured)
		}
	}
	if len(seen) != 2 || seen["10.0.0.1:80"] != 10 || seen["10.0.0.2:80"] != 30 {
		t.Errorf("taken are %v", seen)
	}
}

func TestPick_withoutEndpoints_orToWhereItWasGoing(t *testing.T) {
	c := newClusters()
	for name, text := range map[string]string{
		"none":     `{"name": "none", "type": "STATIC"}`,
		"original": `{"name": "original", "type": "ORIGINAL_DST"}`,
		"named":    `{"name": "named", "type": "STRICT_DNS", "loadAssignment": {"endpoints": [{"lbEndpoints": [{"endpoint": {"address": {"socketAddress": {"address": "example.com", "portValue": 443}}}}]}]}}`,
	} {
		if err := apply(t, c, discovery.Clusters, name, &clusterv3.Cluster{}, text); err != nil {
			t.Fatal(err)
		}
	}
	target := netip.MustParseAddrPort("10.1.2.3:4567")
	for name, want := range map[string]string{"none": "", "original": "10.1.2.3:4567", "named": "example.com:443"} {
		cluster, err := c.Find(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		e, err := cluster.Pick(target)
		if e.Address != want || (want == "") != errors.Is(err, ErrNoEndpoint) {
			t.Errorf("%s goes to %q, %v", name, e.Address, err)
		}
	}
	if _, err := c.Find(t.Context(), "missing"); err == nil {
		t.Error("a missing cluster is found")
	}
}

// Endpoints go with their last cluster: a new cluster of that name waits for new ones.
func TestApply_ofRemovedClusters_forgetsEndpoints(t *testing.T) {
	c := newClusters()
	for range 2 {
		if err := apply(t, c, discovery.Clusters, "outbound|80||echo", &clusterv3.Cluster{}, inMesh); err != nil {
			t.Fatal(err)
		}
		if missing := c.Missing(); len(missing) != 1 {
			t.Errorf("missing are %v", missing)
		}
		if err := apply(t, c, discovery.Endpoints, "echo", &endpointv3.ClusterLoadAssignment{}, `{"clusterName": "echo"}`); err != nil {
			t.Fatal(err)
		}
		if err := c.Apply(discovery.Change{Type: discovery.Clusters, Removed: []string{"outbound|80||echo"}}); err != nil {
			t.Fatal(err)
		}
	}
}

// A refused cluster leaves the one before in force.
func TestApply_refusesClustersThatItDoesNotUnderstand(t *testing.T) {
	c := newClusters()
	for _, text := range []string{
		`{"name": "x", "transportSocket": {"name": "envoy.transport_sockets.alts"}}`,
		`{"name": "x", "clusterType": {"name": "envoy.clusters.dynamic_forward_proxy"}}`,
	} {
		if err := apply(t, c, discovery.Clusters, "x", &clusterv3.Cluster{}, text); err == nil {
			t.Errorf("taken is %s", text)
		}
	}
}
