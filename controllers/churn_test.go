package controllers

import (
	"context"
	"fmt"
	goruntime "runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
)

// fakeServer has pods, and takes patches without a look. The client library's own fake takes 10 ms for each.
type fakeServer struct {
	client.Reader
	client.SubResourceWriter
	pods map[client.ObjectKey]*corev1.Pod
}

func (f fakeServer) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	pod, ok := f.pods[key]
	if out, isPod := obj.(*corev1.Pod); ok && isPod {
		pod.DeepCopyInto(out)
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (f fakeServer) Status() client.SubResourceWriter { return f }

func (f fakeServer) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return nil
}

// churn is all parts of the core on one fake API server.
type churn struct {
	*bench
	api    fakeServer
	watch  *PodWatch
	writer *Writer
}

func newChurn(t *testing.T) *churn {
	t.Helper()
	c := &churn{bench: newBench(t), api: fakeServer{pods: map[client.ObjectKey]*corev1.Pod{}}}
	pods := Reader{Cache: c.api, Live: c.api}
	c.writer = NewWriter(c.api, pods, events.NewFakeRecorder(1000))
	c.Programmer.Pods, c.Programmer.Reporter = pods, c.writer
	c.watch = NewPodWatch(c.api, c.Programmer)
	t.Cleanup(c.watch.queue.ShutDown)
	return c
}

// reconcile has the watch look at a pod, and the writer write what is to be written.
func (c *churn) reconcile(t *testing.T, name string) {
	t.Helper()
	req := ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "shop", Name: name}}
	if _, err := c.watch.Reconcile(t.Context(), req); err != nil && !Permanent(err) {
		t.Fatal(err)
	}
	for c.writer.queue.Len() > 0 {
		c.writer.work(t.Context())
	}
}

// An agent lives for months on a node whose pods live for minutes.
func TestNothingIsLeftOfAThousandPods(t *testing.T) {
	c := newChurn(t)
	before := goruntime.NumGoroutine()
	kinds := []func(pod *corev1.Pod, i int){
		func(*corev1.Pod, int) {},
		func(pod *corev1.Pod, _ int) { pod.Annotations[intent.KeyInitialize] = "wrong" },
		func(pod *corev1.Pod, _ int) { pod.Annotations[intent.KeyInitialize] = "false" },
		func(pod *corev1.Pod, _ int) { pod.Annotations = nil },
		func(_ *corev1.Pod, i int) { delete(c.finder.sandboxes, fmt.Sprint("uid-", i)) }, // waits for its sandbox
	}
	now := time.Unix(1000, 0)
	c.writer.now = func() time.Time { return now }
	for i := range 1000 {
		pod := askingPod()
		pod.Name, pod.UID = fmt.Sprint("pod-", i%200), types.UID(fmt.Sprint("uid-", i))
		c.finder.sandboxes[string(pod.UID)] = podnet.Sandbox{ID: fmt.Sprint("sandbox-", i), NetNS: "/netns/1"}
		kinds[i%len(kinds)](pod, i)
		c.api.pods[client.ObjectKeyFromObject(pod)] = pod
		c.reconcile(t, pod.Name)
		delete(c.api.pods, client.ObjectKeyFromObject(pod))
		if i%3 > 0 || i >= 800 { // else the deletion arrives together with the next creation
			c.reconcile(t, pod.Name)
		}
		delete(c.finder.sandboxes, string(pod.UID))
	}
	for what, n := range map[string]int{
		"ledger": c.Ledger.size(), "turns": len(c.turns.pod), "stuck": len(c.watch.queue.stuck),
		"reports to write": len(c.writer.next), "reports written": len(c.writer.last),
		"goroutines": max(0, goruntime.NumGoroutine()-before),
	} {
		if n != 0 {
			t.Errorf("%s: %d left", what, n)
		}
	}
}
