package kubelet

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	fakeapi "k8s.io/client-go/tools/cache/testing"

	"istio-pod-network-controller/test/standins/kubeletstandin"
)

// newFakeKubelet returns a kubelet that ends with the test.
func newFakeKubelet(t *testing.T) *kubeletstandin.Kubelet {
	t.Helper()
	dir, err := os.MkdirTemp("", "kubelet") //nolint:usetesting // the path of a socket has 107 characters at most
	if err != nil {
		t.Fatal(err)
	}
	f := kubeletstandin.New(filepath.Join(dir, "pods-api.sock"))
	t.Cleanup(func() {
		f.Stop()
		_ = os.RemoveAll(dir)
	})
	return f
}

// start has a kubelet serve, at a new socket.
func start(t *testing.T, f *kubeletstandin.Kubelet) {
	t.Helper()
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func newPod(name, uid string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID, pod.ResourceVersion = "shop", name, types.UID(uid), "7"
	pod.Status.Phase = corev1.PodRunning
	for _, c := range change {
		c(pod)
	}
	return pod
}

func note(value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Annotations = map[string]string{"note": value} }
}

func created(seconds int64) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.CreationTimestamp = metav1.Unix(seconds, 0) }
}

func seenAtTime(at string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Annotations = map[string]string{seenAt: at} }
}

// apiServer is an API server that lists pods before it watches them.
type apiServer struct{ *fakeapi.FakeControllerSource }

func newAPIServer() apiServer { return apiServer{fakeapi.NewFakeControllerSource()} }

// WatchWithContext watches pods.
func (a apiServer) WatchWithContext(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if o.SendInitialEvents != nil {
		return nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("ListOptions").GroupKind(), "", nil)
	}
	return a.Watch(o)
}

// ListWithContext lists pods.
func (a apiServer) ListWithContext(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return a.List(o)
}

// informed is an informer with a Source, and what it has told.
type informed struct {
	source   *Source
	informer cache.SharedIndexInformer

	mu   sync.Mutex
	told []string
}

// inform starts an informer. The API server may be the zero value.
func inform(t *testing.T, f *kubeletstandin.Kubelet, mode Mode, api apiServer, change ...func(*times)) *informed {
	t.Helper()
	client, err := NewClient(f.Socket)
	if err != nil {
		t.Fatal(err)
	}
	if api.FakeControllerSource == nil {
		api = newAPIServer()
	}
	i := &informed{source: NewSource(client, mode, api, nil)}
	i.source.times.look, i.source.times.patience = 20*time.Millisecond, time.Second
	for _, c := range change {
		c(&i.source.times)
	}
	i.informer = cache.NewSharedIndexInformer(&cache.ListWatch{ListWithContextFunc: i.source.ListWithContext, WatchFuncWithContext: i.source.WatchWithContext}, &corev1.Pod{}, 0, nil)
	say := func(what string, obj any) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			t.Errorf("%s of a %T", what, obj)
			return
		}
		i.mu.Lock()
		defer i.mu.Unlock()
		i.told = append(i.told, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", what, pod.Name, pod.UID, pod.Annotations["note"])))
	}
	_, err = i.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { say("add", obj) }, UpdateFunc: func(_, obj any) { say("update", obj) }, DeleteFunc: func(obj any) { say("delete", obj) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		i.informer.RunWithContext(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		_ = client.Close()
	})
	return i
}

// await waits until the condition holds.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(20 * time.Second); !is(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// awaitTold waits until the informer has told just this, in some order within each line.
func (i *informed) awaitTold(t *testing.T, want ...string) {
	t.Helper()
	await(t, strings.Join(want, ", "), func() bool { return len(i.sofar()) >= len(want) })
	if got := i.sofar(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Fatalf("told %q, want %q", got, want)
	}
}

func (i *informed) sofar() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]string(nil), i.told...)
}

// pods returns UIDs by name.
func (i *informed) pods() map[string]string {
	out := map[string]string{}
	for _, obj := range i.informer.GetStore().List() {
		if pod, ok := obj.(*corev1.Pod); ok {
			out[pod.Name] = string(pod.UID)
		}
	}
	return out
}

func (i *informed) awaitPods(t *testing.T, want map[string]string) {
	t.Helper()
	await(t, fmt.Sprint(want), func() bool { return i.informer.HasSynced() && maps.Equal(i.pods(), want) })
}
