package discovery

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/anypb"
)

// server hands its streams to a test, which speaks the server's part.
type server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	incremental chan discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	whole       chan discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer
	end         chan error
}

func (s *server) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	s.incremental <- stream
	return <-s.end
}

func (s *server) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	s.whole <- stream
	return <-s.end
}

// receiver wants endpoints of the clusters that it has, and refuses one.
type receiver struct {
	mu      sync.Mutex
	have    []string
	changes chan Change
}

func (r *receiver) Apply(c Change) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.changes <- c }()
	if _, ok := c.Set["bad"]; ok {
		return errors.New("bad is not understood")
	}
	if c.Type == Clusters {
		for name := range c.Set {
			r.have = append(r.have, name)
		}
		r.have = slices.DeleteFunc(r.have, func(name string) bool { return slices.Contains(c.Removed, name) })
	}
	return nil
}

func (r *receiver) Wanted(typeURL string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if typeURL != Endpoints {
		return nil
	}
	names := slices.Clone(r.have)
	slices.Sort(names)
	return slices.Compact(names)
}

// connect runs a client to a server.
func connect(t *testing.T, incremental bool) (*server, *receiver) {
	t.Helper()
	s := &server{
		incremental: make(chan discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer),
		whole:       make(chan discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer), end: make(chan error),
	}
	l := bufconn.Listen(1 << 20)
	g := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, s)
	go g.Serve(l) //nolint:errcheck // ends with the test
	conn, err := grpc.NewClient("passthrough:x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	node := &corev3.Node{Id: "sidecar~10.0.0.1~a.b~b.svc"}
	r := &receiver{changes: make(chan Change, 100)}
	c := &Client{Receiver: r, Log: slog.New(slog.DiscardHandler), Types: []string{Clusters, Endpoints, Listeners, Routes}, Open: ADS(conn, node, incremental)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { c.Run(ctx); close(done) }()
	t.Cleanup(func() {
		cancel()
		<-done
		close(s.end)
		_ = conn.Close()
		g.Stop()
	})
	return s, r
}

func cluster(t *testing.T, name string) *anypb.Any {
	t.Helper()
	packed, err := anypb.New(&clusterv3.Cluster{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

func next[T any](t *testing.T, from func() (T, error)) T {
	t.Helper()
	got, err := from()
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestIncremental_subscribesAcceptsAndRefuses(t *testing.T) {
	s, r := connect(t, true)
	stream := <-s.incremental
	first := next(t, stream.Recv)
	if first.GetTypeUrl() != Clusters || first.GetNode().GetId() == "" || len(first.GetResourceNamesSubscribe()) > 0 {
		t.Fatalf("the first question is %v", first)
	}
	send := func(nonce string, removed []string, names ...string) {
		t.Helper()
		response := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: Clusters, Nonce: nonce, RemovedResources: removed}
		for _, name := range names {
			response.Resources = append(response.Resources, &discoveryv3.Resource{Name: name, Version: nonce, Resource: cluster(t, name)})
		}
		if err := stream.Send(response); err != nil {
			t.Fatal(err)
		}
		<-r.changes
	}
	send("1", nil, "a", "b")
	if ack := next(t, stream.Recv); ack.GetResponseNonce() != "1" || ack.GetErrorDetail() != nil || ack.GetNode() != nil {
		t.Errorf("the answer is %v", ack)
	}
	if ask := next(t, stream.Recv); ask.GetTypeUrl() != Endpoints || !slices.Equal(ask.GetResourceNamesSubscribe(), []string{"a", "b"}) {
		t.Errorf("then it asks %v", ask)
	}
	if ask := next(t, stream.Recv); ask.GetTypeUrl() != Listeners {
		t.Errorf("then it asks %v", ask)
	}
	send("2", []string{"a"}, "c")
	next(t, stream.Recv)
	if ask := next(t, stream.Recv); !slices.Equal(ask.GetResourceNamesSubscribe(), []string{"c"}) || !slices.Equal(ask.GetResourceNamesUnsubscribe(), []string{"a"}) {
		t.Errorf("after a change it asks %v", ask)
	}
	send("3", nil, "bad")
	if nack := next(t, stream.Recv); nack.GetResponseNonce() != "3" || nack.GetErrorDetail().GetMessage() != "bad is not understood" {
		t.Errorf("the answer is %v", nack)
	}
	s.end <- errors.New("istiod restarts")
	stream = <-s.incremental
	again := next(t, stream.Recv)
	if known := again.GetInitialResourceVersions(); len(known) != 2 || known["b"] != "1" || known["c"] != "2" || again.GetNode().GetId() == "" {
		t.Errorf("on a new stream it says %v", again)
	}
}

func TestWhole_findsWhatIsGone(t *testing.T) {
	s, r := connect(t, false)
	stream := <-s.whole
	next(t, stream.Recv)
	send := func(nonce string, names ...string) Change {
		t.Helper()
		response := &discoveryv3.DiscoveryResponse{TypeUrl: Clusters, Nonce: nonce, VersionInfo: "v" + nonce}
		for _, name := range names {
			response.Resources = append(response.Resources, cluster(t, name))
		}
		if err := stream.Send(response); err != nil {
			t.Fatal(err)
		}
		return <-r.changes
	}
	send("1", "a", "b")
	if ack := next(t, stream.Recv); ack.GetVersionInfo() != "v1" || ack.GetResponseNonce() != "1" {
		t.Errorf("the answer is %v", ack)
	}
	if ask := next(t, stream.Recv); ask.GetTypeUrl() != Endpoints || !slices.Equal(ask.GetResourceNames(), []string{"a", "b"}) {
		t.Errorf("then it asks %v", ask)
	}
	next(t, stream.Recv) // listeners
	if change := send("2", "b"); !slices.Equal(change.Removed, []string{"a"}) {
		t.Errorf("gone are %v", change.Removed)
	}
	next(t, stream.Recv)
	if ask := next(t, stream.Recv); !slices.Equal(ask.GetResourceNames(), []string{"b"}) {
		t.Errorf("after a change it asks %v", ask)
	}
	send("3", "bad")
	if nack := next(t, stream.Recv); nack.GetVersionInfo() != "v2" || nack.GetResponseNonce() != "3" || nack.GetErrorDetail() == nil {
		t.Errorf("the answer is %v", nack)
	}
	s.end <- errors.New("istiod restarts")
	select {
	case stream = <-s.whole:
	case <-time.After(10 * time.Second):
		t.Fatal("no new stream")
	}
	if again := next(t, stream.Recv); again.GetVersionInfo() != "" || again.GetNode().GetId() == "" {
		t.Errorf("on a new stream it says %v", again)
	}
}
