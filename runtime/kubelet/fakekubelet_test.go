package kubelet

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// fakeKubelet serves pods as the kubelet of Kubernetes 1.37 does (pkg/kubelet/apis/pods/server.go).
type fakeKubelet struct {
	podsv1alpha1.UnimplementedPodsServer

	socket string
	server *grpc.Server

	mu      sync.Mutex
	pods    map[types.UID]*corev1.Pod
	clients map[chan *podsv1alpha1.WatchPodsEvent]bool
	refuses error // what every call is answered with
	limited int   // so many unary calls are too many
	// instead replaces the messages of the streams that begin from now on.
	instead []*podsv1alpha1.WatchPodsEvent
	silent  bool // streams get no message
}

func newFakeKubelet(t *testing.T) *fakeKubelet {
	t.Helper()
	dir, err := os.MkdirTemp("", "kubelet") //nolint:usetesting // the path of a socket has 107 characters at most
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeKubelet{socket: filepath.Join(dir, "pods-api.sock"), pods: map[types.UID]*corev1.Pod{}, clients: map[chan *podsv1alpha1.WatchPodsEvent]bool{}}
	t.Cleanup(func() {
		f.stop()
		_ = os.RemoveAll(dir)
	})
	return f
}

// start begins to serve, at a new socket.
func (f *fakeKubelet) start(t *testing.T) {
	t.Helper()
	_ = os.Remove(f.socket) // there may be none
	var l net.ListenConfig
	listener, err := l.Listen(t.Context(), "unix", f.socket)
	if err != nil {
		t.Fatal(err)
	}
	f.server = grpc.NewServer()
	podsv1alpha1.RegisterPodsServer(f.server, f)
	go f.server.Serve(listener) //nolint:errcheck // it ends with the server
}

// stop ends the kubelet: streams end as the real one ends them.
func (f *fakeKubelet) stop() {
	f.mu.Lock()
	for c := range f.clients {
		close(c)
		delete(f.clients, c)
	}
	f.mu.Unlock()
	if f.server != nil {
		f.server.Stop()
	}
}

// change calls f with the fake locked.
func (f *fakeKubelet) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// put adds a pod, or changes it.
func (f *fakeKubelet) put(pods ...*corev1.Pod) {
	f.change(func() {
		for _, pod := range pods {
			kind := podsv1alpha1.EventType_MODIFIED
			if f.pods[pod.UID] == nil {
				kind = podsv1alpha1.EventType_ADDED
			}
			f.pods[pod.UID] = pod
			f.send(kind, pod)
		}
	})
}

// putSilently is put, but the event is lost.
func (f *fakeKubelet) putSilently(pod *corev1.Pod) { f.change(func() { f.pods[pod.UID] = pod }) }

// end says that a pod has ended for good. It stays in lists while its object is at the API server.
func (f *fakeKubelet) end(pod *corev1.Pod, stays bool) {
	f.change(func() {
		delete(f.pods, pod.UID)
		if stays {
			ended := pod.DeepCopy()
			ended.Status.Phase = corev1.PodSucceeded
			f.pods[pod.UID] = ended
		}
		least := &corev1.Pod{}
		least.Namespace, least.Name, least.UID = pod.Namespace, pod.Name, pod.UID
		f.send(podsv1alpha1.EventType_DELETED, least)
	})
}

func (f *fakeKubelet) send(kind podsv1alpha1.EventType, pod *corev1.Pod) {
	for c := range f.clients {
		c <- event(kind, pod)
	}
}

func event(kind podsv1alpha1.EventType, pod *corev1.Pod) *podsv1alpha1.WatchPodsEvent {
	out := &podsv1alpha1.WatchPodsEvent{Type: kind}
	if pod != nil {
		out.Pod, _ = pod.Marshal() // the bytes of a pod that was made here
	}
	return out
}

// WatchPods is a method of the protocol.
func (f *fakeKubelet) WatchPods(_ *podsv1alpha1.WatchPodsRequest, s grpc.ServerStreamingServer[podsv1alpha1.WatchPodsEvent]) error {
	own := make(chan *podsv1alpha1.WatchPodsEvent, 2000)
	f.mu.Lock()
	refused, silent := f.refuses, f.silent
	begin := f.instead
	if begin == nil {
		for _, pod := range f.pods {
			begin = append(begin, event(podsv1alpha1.EventType_ADDED, pod))
		}
		begin = append(begin, event(podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE, nil))
	}
	f.clients[own] = true
	f.mu.Unlock()
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
			f.change(func() { delete(f.clients, own) })
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

// GetPod is a method of the protocol.
func (f *fakeKubelet) GetPod(_ context.Context, r *podsv1alpha1.GetPodRequest) (*podsv1alpha1.GetPodResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.limited > 0 {
		f.limited--
		return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
	}
	if f.refuses != nil {
		return nil, f.refuses
	}
	pod := f.pods[types.UID(r.GetPodUID())]
	if pod == nil {
		return nil, status.Errorf(codes.NotFound, "pod with UID %s not found", r.GetPodUID())
	}
	return &podsv1alpha1.GetPodResponse{Pod: event(podsv1alpha1.EventType_ADDED, pod).GetPod()}, nil
}

// ListPods is a method of the protocol.
func (f *fakeKubelet) ListPods(context.Context, *podsv1alpha1.ListPodsRequest) (*podsv1alpha1.ListPodsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.limited > 0 {
		f.limited--
		return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
	}
	if f.refuses != nil {
		return nil, f.refuses
	}
	out := &podsv1alpha1.ListPodsResponse{}
	for _, pod := range f.pods {
		out.Pods = append(out.Pods, event(podsv1alpha1.EventType_ADDED, pod).GetPod())
	}
	return out, nil
}
