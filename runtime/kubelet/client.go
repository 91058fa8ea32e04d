// Package kubelet reads the pods of a node from its kubelet: the Pods API of Kubernetes 1.37 (KEP-4188), gRPC on a socket of the node.
//
//	client.go   questions to the kubelet: one pod, and a stream of all of them
//	pieces.go   a list of pods, read one by one
//	roster.go   what of a stream is news to an informer
//	source.go   an informer's source of pods: the kubelet, or the API server
//	follow.go   a watch of the kubelet's pods
//	status.go   where pods come from at present
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/internal/podnet"
)

// DefaultSocket is where kubelets with the root directory /var/lib/kubelet serve their pods. The kubelet makes its directory.
const DefaultSocket = "/var/lib/kubelet/pods-api/pods-api.sock"

const (
	// maxMessage bounds one answer, which may be a list of all pods: 250 of 20 KiB are 5 MiB, more than gRPC's default.
	maxMessage = 64 << 20
	// maxPods bounds the pods of a node. Kubelets have 110 unless they are told otherwise.
	maxPods = 10_000
	// silence is how long the kubelet may take for its next message of an initial list, and for one pod.
	silence = 5 * time.Second
	// maxReconnectDelay: gRPC's default of two minutes would be too long after a restart of the kubelet.
	maxReconnectDelay = 2 * time.Second
)

// Client asks a kubelet for pods. Its methods may be called at once.
type Client struct {
	socket string
	conn   *grpc.ClientConn
	pods   podsv1alpha1.PodsClient
}

// NewClient returns a Client of the kubelet at a socket, which the first call dials. A kubelet that restarts makes a new socket: its directory must
// be mounted, not the socket.
func NewClient(socket string) (*Client, error) {
	retry := backoff.DefaultConfig
	retry.BaseDelay, retry.MaxDelay = 100*time.Millisecond, maxReconnectDelay
	conn, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: silence}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	)
	if err != nil {
		return nil, fmt.Errorf("make a client of the kubelet at %s: %w", socket, err)
	}
	return &Client{socket: socket, conn: conn, pods: podsv1alpha1.NewPodsClient(conn)}, nil
}

// Close ends all calls.
func (c *Client) Close() error { return c.conn.Close() }

// failure returns an error with the kubelet's words.
func (c *Client) failure(err error) error {
	words := err.Error()
	if s, ok := status.FromError(err); ok {
		words = s.Message()
	}
	switch status.Code(err) {
	case codes.FailedPrecondition:
		return fmt.Errorf("the kubelet at %s does not know its pods yet; it reads them from the API server: %s", c.socket, words)
	case codes.Unimplemented:
		return fmt.Errorf("the kubelet at %s does not serve its pods: %s", c.socket, words)
	}
	return fmt.Errorf("ask the kubelet at %s for its pods: %s", c.socket, words)
}

// tooOften is the mean wait after an answer that the kubelet was asked too often: it lets all of its callers ask 100 times a second, and 10 times at once.
const tooOften = 50 * time.Millisecond

// Pod returns the pod with a UID. If the kubelet has none, the error is podnet.ErrNoPod.
func (c *Client) Pod(ctx context.Context, uid string) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	for {
		got, err := c.pods.GetPod(ctx, &podsv1alpha1.GetPodRequest{PodUID: uid})
		switch {
		case err == nil:
			return decode(got.GetPod())
		case status.Code(err) == codes.NotFound:
			return nil, c.noPod()
		case status.Code(err) != codes.ResourceExhausted || !jitter.Wait(ctx, 2*tooOften):
			return nil, c.failure(err)
		}
	}
}

// Named returns the newest pod with a name, or podnet.ErrNoPod.
func (c *Client) Named(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	s, err := c.list(ctx, reader{})
	if err != nil {
		return nil, err
	}
	s.close()
	if l, ok := s.pods[types.NamespacedName{Namespace: namespace, Name: name}]; ok {
		return l.pod, nil
	}
	return nil, c.noPod()
}

func (c *Client) noPod() error {
	return fmt.Errorf("ask the kubelet at %s: %w", c.socket, podnet.ErrNoPod)
}

// relist calls read with the message about each pod that is listed now. It must not keep it.
func (c *Client) relist(ctx context.Context, read func(message []byte) error) error {
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	var failed error
	answer := &pieces{read: func(message []byte) error { failed = read(message); return failed }}
	err := c.conn.Invoke(ctx, podsv1alpha1.Pods_ListPods_FullMethodName, &podsv1alpha1.ListPodsRequest{}, answer, grpc.ForceCodecV2(piecewise{encoding.GetCodecV2(proto.Name)}))
	switch {
	case failed != nil:
		return failed
	case err != nil:
		return c.failure(err)
	}
	return nil
}

// serves reports whether the kubelet gives all of its pods now.
func (c *Client) serves(ctx context.Context) bool {
	s, err := c.list(ctx, reader{strip: identity})
	if err != nil {
		return false
	}
	s.close()
	return true
}

// decode returns the pod of a message.
func decode(message []byte) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := pod.Unmarshal(message); err != nil {
		return nil, fmt.Errorf("the kubelet's pod of %d bytes: %w", len(message), err)
	}
	if pod.UID == "" || pod.Name == "" || pod.Namespace == "" {
		return nil, fmt.Errorf("the kubelet's pod %q in namespace %q has the UID %q: none of them may be empty", pod.Name, pod.Namespace, pod.UID)
	}
	if pod.Annotations[sourceOf] == fromAPI {
		delete(pod.Annotations, sourceOf)
		delete(pod.Annotations, seenAt)
	}
	return pod, nil
}

// Annotations that the kubelet adds to its pods: where it has each from, and since when. The second changes with each of its restarts, so pods of the
// API server are given without them, as they are there.
const (
	sourceOf = "kubernetes.io/config.source"
	seenAt   = "kubernetes.io/config.seen"
	fromAPI  = "api"
)

// stream is a WatchPods call: all pods, and then what happens to them.
type stream struct {
	pods list // with which it began

	reader reader
	client *Client
	calls  grpc.ServerStreamingClient[podsv1alpha1.WatchPodsEvent]
	close  context.CancelFunc
}

// list opens a stream, and reads the pods with which it begins. The caller closes it.
func (c *Client) list(ctx context.Context, r reader) (*stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(silence, cancel)
	s := &stream{pods: list{}, reader: r, client: c, close: cancel}
	var err error
	if s.calls, err = c.pods.WatchPods(ctx, &podsv1alpha1.WatchPodsRequest{}); err != nil {
		err = c.failure(err)
	} else {
		err = s.begin(func() { late.Reset(silence) })
	}
	switch isLate := !late.Stop(); {
	case isLate:
		err = fmt.Errorf("the kubelet at %s has said nothing for %s", c.socket, silence)
	case err == nil:
		return s, nil
	}
	cancel()
	return nil, err
}

// begin reads the pods with which a stream begins. alive is called at each.
func (s *stream) begin(alive func()) error {
	for range maxPods {
		e, err := s.next()
		if err != nil {
			return err
		}
		alive()
		switch e.GetType() {
		case podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE:
			return nil
		case podsv1alpha1.EventType_ADDED:
			p, err := s.reader.read(e.GetPod())
			if err != nil {
				return err
			}
			s.pods.add(p)
		default:
			return fmt.Errorf("the kubelet at %s began its list of pods with the event %s", s.client.socket, e.GetType())
		}
	}
	return fmt.Errorf("the kubelet at %s lists more than %d pods", s.client.socket, maxPods)
}

// errEnded is a stream that the kubelet has ended, as it does when it ends itself, or when it takes this client for too slow.
var errEnded = errors.New("the kubelet has ended its stream of pods")

// next waits for the next message.
func (s *stream) next() (*podsv1alpha1.WatchPodsEvent, error) {
	e, err := s.calls.Recv()
	switch {
	case errors.Is(err, io.EOF), status.Code(err) == codes.ResourceExhausted:
		return nil, errEnded
	case err != nil:
		return nil, s.client.failure(err)
	}
	return e, nil
}

// event waits for the next pod that was added, modified or deleted. Of a deleted one there are names and UID only.
func (s *stream) event() (p told, isDeleted bool, err error) {
	e, err := s.next()
	if err != nil {
		return p, false, err
	}
	switch e.GetType() {
	case podsv1alpha1.EventType_ADDED, podsv1alpha1.EventType_MODIFIED:
	case podsv1alpha1.EventType_DELETED:
		isDeleted = true
	default:
		return p, false, fmt.Errorf("the kubelet at %s sent the event %s", s.client.socket, e.GetType())
	}
	p, err = s.reader.read(e.GetPod())
	return p, isDeleted, err
}
