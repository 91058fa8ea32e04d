package container

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandboxLister is a connection to a runtime with one sandbox, which is ready.
type sandboxLister struct {
	labels map[string]string
	err    error
}

// Invoke answers ListPodSandbox.
func (l sandboxLister) Invoke(_ context.Context, _ string, request, reply any, _ ...grpc.CallOption) error {
	asked, ok := request.(*criv1.ListPodSandboxRequest)
	into, isList := reply.(*criv1.ListPodSandboxResponse)
	if !ok || !isList || asked.GetFilter().GetState().GetState() != criv1.PodSandboxState_SANDBOX_READY {
		return errors.New("want ready sandboxes to be listed")
	}
	for key, value := range asked.GetFilter().GetLabelSelector() {
		if l.labels[key] != value {
			return l.err
		}
	}
	proto.Merge(into, &criv1.ListPodSandboxResponse{Items: []*criv1.PodSandbox{{Id: "s1", Labels: l.labels, State: criv1.PodSandboxState_SANDBOX_READY}}})
	return l.err
}

// NewStream is not used.
func (sandboxLister) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

func TestHasSharedProxy_pods_anyNamespaceCounts(t *testing.T) {
	edge := map[string]string{"pod-network-controller.istio.io/shared-proxy": "edge"}
	for name, c := range map[string]struct {
		runtime sandboxLister
		want    bool
		fails   bool
	}{
		"it runs":               {runtime: sandboxLister{labels: edge}, want: true},
		"another profile's":     {runtime: sandboxLister{labels: map[string]string{"pod-network-controller.istio.io/shared-proxy": "other"}}},
		"the runtime is away":   {runtime: sandboxLister{err: errors.New("away")}, fails: true},
		"it says so of no such": {runtime: sandboxLister{}},
	} {
		if got, err := New(c.runtime, t.TempDir()).HasSharedProxy(t.Context(), "edge"); got != c.want || (err != nil) != c.fails {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
}
