package discovery

import (
	"context"
	"fmt"
	"path"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// maxMessage is high: all clusters of a mesh come in one message.
const maxMessage = 100 << 20

// wholeClient is what the streams of state of the world have in common.
type wholeClient interface {
	Send(request *discoveryv3.DiscoveryRequest) error
	Recv() (*discoveryv3.DiscoveryResponse, error)
}

// whole is the variant whose responses to a question for all resources list all of them.
type whole struct {
	stream wholeClient
	node   *corev3.Node
	asked  map[string]*discoveryv3.DiscoveryRequest // what was said last, by type
	seen   map[string]map[string]bool               // what the last response listed, by type; for all streams
}

func openWhole(ctx context.Context, conn grpc.ClientConnInterface, node *corev3.Node, seen map[string]map[string]bool) (Stream, error) {
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx, grpc.MaxCallRecvMsgSize(maxMessage))
	return newWhole(stream, node, seen), err
}

// SDS opens a stream of secrets.
func SDS(conn grpc.ClientConnInterface, node *corev3.Node) func(context.Context) (Stream, error) {
	return func(ctx context.Context) (Stream, error) {
		stream, err := secretv3.NewSecretDiscoveryServiceClient(conn).StreamSecrets(ctx)
		return newWhole(stream, node, nil), err
	}
}

func newWhole(stream wholeClient, node *corev3.Node, seen map[string]map[string]bool) *whole {
	return &whole{stream: stream, node: node, asked: map[string]*discoveryv3.DiscoveryRequest{}, seen: seen}
}

func (s *whole) Ask(typeURL string, names []string) error {
	request := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: names}
	if before := s.asked[typeURL]; before != nil {
		request.VersionInfo, request.ResponseNonce = before.VersionInfo, before.ResponseNonce
	}
	return s.send(request)
}

func (s *whole) send(request *discoveryv3.DiscoveryRequest) error {
	s.asked[request.TypeUrl] = proto.CloneOf(request)
	s.asked[request.TypeUrl].ErrorDetail = nil
	request.Node, s.node = s.node, nil
	return s.stream.Send(request)
}

func (s *whole) Receive() (*Response, error) {
	r, err := s.stream.Recv()
	if err != nil {
		return nil, err
	}
	response := &Response{Change: Change{Type: r.GetTypeUrl(), Set: map[string]*anypb.Any{}}, nonce: r.GetNonce(), version: r.GetVersionInfo()}
	listed := map[string]bool{}
	for _, resource := range r.GetResources() {
		name, err := nameOf(resource)
		if err != nil {
			return nil, err
		}
		response.Set[name], listed[name] = resource, true
	}
	if response.Type == Clusters || response.Type == Listeners {
		for name := range s.seen[response.Type] {
			if !listed[name] {
				response.Removed = append(response.Removed, name)
			}
		}
		s.seen[response.Type] = listed
	}
	return response, nil
}

// Answer repeats the names; the version is the last that was accepted.
func (s *whole) Answer(r *Response, reason error) error {
	before := s.asked[r.Type]
	if before == nil {
		return nil // nobody has asked
	}
	version := r.version
	if reason != nil {
		version = before.VersionInfo
	}
	return s.send(&discoveryv3.DiscoveryRequest{TypeUrl: r.Type, ResourceNames: before.ResourceNames, VersionInfo: version, ResponseNonce: r.nonce, ErrorDetail: detail(reason)})
}

// nameOf reads a resource's name, which only the incremental variant sends beside it.
func nameOf(resource *anypb.Any) (string, error) {
	message, err := resource.UnmarshalNew()
	if err != nil {
		return "", fmt.Errorf("read a resource: %w", err)
	}
	m := message.ProtoReflect()
	for _, field := range []protoreflect.Name{"name", "cluster_name"} {
		if d := m.Descriptor().Fields().ByName(field); d != nil {
			return m.Get(d).String(), nil
		}
	}
	return "", fmt.Errorf("%s has no name", resource.GetTypeUrl())
}

// shortName is a type's name without its package.
func shortName(typeURL string) string { return path.Ext(typeURL)[1:] }

func shortNames(types []string) []string {
	var names []string
	for _, t := range types {
		names = append(names, shortName(t))
	}
	return names
}
