package discovery

import (
	"context"
	"maps"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"
)

// incremental is the delta variant.
type incremental struct {
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	node   *corev3.Node // sent with the first request only
	asked  map[string][]string
	known  map[string]map[string]string // versions by type and name
}

func openIncremental(ctx context.Context, conn grpc.ClientConnInterface, node *corev3.Node, known map[string]map[string]string) (Stream, error) {
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx, grpc.MaxCallRecvMsgSize(maxMessage))
	if err != nil {
		return nil, err
	}
	return &incremental{stream: stream, node: node, asked: map[string][]string{}, known: known}, nil
}

// Ask sends what is new and what is gone.
func (s *incremental) Ask(typeURL string, names []string) error {
	before, again := s.asked[typeURL]
	request := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: except(names, before), ResourceNamesUnsubscribe: except(before, names)}
	for _, name := range request.ResourceNamesUnsubscribe {
		delete(s.known[typeURL], name)
	}
	if !again {
		request.InitialResourceVersions = maps.Clone(s.known[typeURL])
	}
	s.asked[typeURL] = names
	return s.send(request)
}

func except(names, others []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(others, name) })
}

func (s *incremental) send(request *discoveryv3.DeltaDiscoveryRequest) error {
	request.Node, s.node = s.node, nil
	return s.stream.Send(request)
}

func (s *incremental) Receive() (*Response, error) {
	r, err := s.stream.Recv()
	if err != nil {
		return nil, err
	}
	response := &Response{Change: Change{Type: r.GetTypeUrl(), Set: map[string]*anypb.Any{}, Removed: r.GetRemovedResources()}, nonce: r.GetNonce(), versions: map[string]string{}}
	for _, resource := range r.GetResources() {
		response.Set[resource.GetName()] = resource.GetResource()
		response.versions[resource.GetName()] = resource.GetVersion()
	}
	return response, nil
}

func (s *incremental) Answer(r *Response, reason error) error {
	if reason == nil {
		if s.known[r.Type] == nil {
			s.known[r.Type] = map[string]string{}
		}
		maps.Copy(s.known[r.Type], r.versions)
		for _, name := range r.Removed {
			delete(s.known[r.Type], name)
		}
	}
	return s.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.Type, ResponseNonce: r.nonce, ErrorDetail: detail(reason)})
}

// detail is the reason of a refusal, nil for none.
func detail(reason error) *statuspb.Status {
	if reason == nil {
		return nil
	}
	return &statuspb.Status{Code: int32(codes.InvalidArgument), Message: reason.Error()}
}
