// Package kubeletstandin serves pods as the kubelet of Kubernetes 1.37 does (pkg/kubelet/apis/pods/server.go), for tests and benches.
package kubeletstandin

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// Kubelet stands in for a kubelet. Its fields may be set by Change.
type Kubelet struct {
	podsv1alpha1.UnimplementedPodsServer

	Socket string
	Pods   map[types.UID]*corev1.Pod
	// Refuses is the answer to every call.
	Refuses error
	// Limited is how many of the next unary calls come too often.
	Limited int
	// Instead replaces the messages with which a stream begins.
	Instead []*podsv1alpha1.WatchPodsEvent
	// Silent has streams get no message.
	Silent bool

	server  *grpc.Server
	mu      sync.Mutex
	clients map[chan *podsv1alpha1.WatchPodsEvent]bool
}

// New returns a Kubelet that does not serve yet. A socket's path may have 107 characters.
func New(socket string) *Kubelet {
	return &Kubelet{Socket: socket, Pods: map[types.UID]*corev1.Pod{}, clients: map[chan *podsv1alpha1.WatchPodsEvent]bool{}}
}

// Start begins to serve, at a new socket.
func (k *Kubelet) Start(ctx context.Context) error {
	if err := os.Remove(k.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var l net.ListenConfig
	listener, err := l.Listen(ctx, "unix", k.Socket)
	if err != nil {
		return err
	}
	k.server = grpc.NewServer()
	podsv1alpha1.RegisterPodsServer(k.server, k)
	go k.server.Serve(listener) //nolint:errcheck // it ends with the server
	return nil
}

// Stop ends the kubelet: streams end as the real one ends them.
func (k *Kubelet) Stop() {
	k.mu.Lock()
	for c := range k.clients {
		close(c)
		delete(k.clients, c)
	}
	k.mu.Unlock()
	if k.server != nil {
		k.server.Stop()
	}
}

// Change calls a function with the Kubelet locked.
func (k *Kubelet) Change(do func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	do()
}

// Put adds a pod, or changes it.
func (k *Kubelet) Put(pods ...*corev1.Pod) {
	k.Change(func() {
		for _, pod := range pods {
			kind := podsv1alpha1.EventType_MODIFIED
			if k.Pods[pod.UID] == nil {
				kind = podsv1alpha1.EventType_ADDED
			}
			k.Pods[pod.UID] = pod
			k.send(kind, pod)
		}
	})
}

// Tell sends an event about a pod that need not be as it is.
func (k *Kubelet) Tell(pod *corev1.Pod) {
	k.Change(func() { k.send(podsv1alpha1.EventType_MODIFIED, pod) })
}

// PutSilently is Put, but the event is lost.
func (k *Kubelet) PutSilently(pod *corev1.Pod) { k.Change(func() { k.Pods[pod.UID] = pod }) }

// End says that a pod has ended for good. It stays in lists while its object is at the API server.
func (k *Kubelet) End(pod *corev1.Pod, stays bool) {
	k.Change(func() {
		delete(k.Pods, pod.UID)
		if stays {
			ended := pod.DeepCopy()
			ended.Status.Phase = corev1.PodSucceeded
			k.Pods[pod.UID] = ended
		}
		least := &corev1.Pod{}
		least.Namespace, least.Name, least.UID = pod.Namespace, pod.Name, pod.UID
		k.send(podsv1alpha1.EventType_DELETED, least)
	})
}

func (k *Kubelet) send(kind podsv1alpha1.EventType, pod *corev1.Pod) {
	for c := range k.clients {
		c <- Event(kind, pod)
	}
}

// Event returns a message of a stream.
func Event(kind podsv1alpha1.EventType, pod *corev1.Pod) *podsv1alpha1.WatchPodsEvent {
	out := &podsv1alpha1.WatchPodsEvent{Type: kind}
	if pod != nil {
		out.Pod, _ = pod.Marshal() // the bytes of a pod that was made here
	}
	return out
}

// WatchPods is a method of the protocol.
func (k *Kubelet) WatchPods(_ *podsv1alpha1.WatchPodsRequest, s grpc.ServerStreamingServer[podsv1alpha1.WatchPodsEvent]) error {
	own := make(chan *podsv1alpha1.WatchPodsEvent, 2000)
	k.mu.Lock()
	refused, silent := k.Refuses, k.Silent
	begin := k.Instead
	if begin == nil {
		for _, pod := range k.Pods {
			begin = append(begin, Event(podsv1alpha1.EventType_ADDED, pod))
		}
		begin = append(begin, Event(podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE, nil))
	}
	k.clients[own] = true
	k.mu.Unlock()
	if refused != nil {
		return refused
	}
	if silent {
		<-s.Context().Done()
		return nil
	}
	for _, e := range begin {
		if err := s.Send(e); err != nil {
			return err
		}
	}
	for {
		select {
		case <-s.Context().Done():
			k.Change(func() { delete(k.clients, own) })
			return s.Context().Err()
		case e, ok := <-own:
			if !ok {
				return status.Error(codes.ResourceExhausted, "watch client channel closed")
			}
			if err := s.Send(e); err != nil {
				return err
			}
		}
	}
}

// refusal returns the answer to a unary call that is refused, or nil. The Kubelet is locked.
func (k *Kubelet) refusal() error {
	if k.Limited > 0 {
		k.Limited--
		return status.Error(codes.ResourceExhausted, "rejected by rate limit")
	}
	return k.Refuses
}

// GetPod is a method of the protocol.
func (k *Kubelet) GetPod(_ context.Context, r *podsv1alpha1.GetPodRequest) (*podsv1alpha1.GetPodResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.refusal(); err != nil {
		return nil, err
	}
	pod := k.Pods[types.UID(r.GetPodUID())]
	if pod == nil {
		return nil, status.Errorf(codes.NotFound, "pod with UID %s not found", r.GetPodUID())
	}
	return &podsv1alpha1.GetPodResponse{Pod: Event(podsv1alpha1.EventType_ADDED, pod).GetPod()}, nil
}

// ListPods is a method of the protocol.
func (k *Kubelet) ListPods(context.Context, *podsv1alpha1.ListPodsRequest) (*podsv1alpha1.ListPodsResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.refusal(); err != nil {
		return nil, err
	}
	out := &podsv1alpha1.ListPodsResponse{}
	for _, pod := range k.Pods {
		out.Pods = append(out.Pods, Event(podsv1alpha1.EventType_ADDED, pod).GetPod())
	}
	return out, nil
}
