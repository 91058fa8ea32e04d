package controllers

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/iptables"
)

// statusServer is an API server with one pod, which takes patches of its status.
type statusServer struct {
	client.SubResourceWriter
	mu      sync.Mutex
	pod     *corev1.Pod
	patches int
}

func (s *statusServer) Status() client.SubResourceWriter { return s }

func (s *statusServer) Patch(_ context.Context, _ client.Object, p client.Patch, _ ...client.SubResourcePatchOption) error {
	data, err := p.Data(nil)
	if err != nil {
		return err
	}
	var patch struct {
		Metadata struct{ Annotations map[string]*string }
		Status   struct{ Conditions []corev1.PodCondition }
	}
	if err := json.Unmarshal(data, &patch); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.patches++
	for key, value := range patch.Metadata.Annotations {
		if delete(s.pod.Annotations, key); value != nil {
			s.pod.Annotations[key] = *value
		}
	}
	s.pod.Status.Conditions = patch.Status.Conditions
	return nil
}

func (s *statusServer) Current(ctx context.Context, sandbox podnet.Sandbox) (*corev1.Pod, error) {
	return s.Pod(ctx, sandbox)
}

func (s *statusServer) Pod(context.Context, podnet.Sandbox) (*corev1.Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pod.DeepCopy(), nil
}

func (s *statusServer) Namespace(context.Context, string) (*corev1.Namespace, error) { return nil, nil }

func (s *statusServer) CurrentNamespace(context.Context, string) (*corev1.Namespace, error) {
	return nil, nil
}

// condition returns our condition's status and reason, and the pod's details.
func (s *statusServer) says(t *testing.T) (condition string, said podreport.Details) {
	t.Helper()
	pod, _ := s.Pod(t.Context(), podnet.Sandbox{}) // never fails
	said, _ = podreport.DetailsOn(pod)
	if c := findCondition(pod); c != nil {
		condition = string(c.Status) + " " + c.Reason
	}
	return condition, said
}

// drifting is a Programmer, a PodWatch and a Writer at work on one pod.
type drifting struct {
	*bench
	api    *statusServer
	events *events.FakeRecorder
}

// runDrifting calls f in a bubble in which the pod is programmed, and everything works on.
func runDrifting(t *testing.T, f func(*testing.T, *drifting)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := &drifting{bench: newBench(t), api: &statusServer{pod: askingPod()}, events: events.NewFakeRecorder(10_000)}
		w := NewWriter(d.api, d.api, d.events)
		d.Pods, d.Reporter, d.VerifyInterval = d.api, w, 10*time.Second
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = w.Start(ctx) })
		watch := newWorkWatch(d.bench)
		running.Go(func() { d.work(ctx, t, watch) })
		d.ensure(t, Changed)
		d.wait(time.Minute)
		f(t, d)
		cancel()
		running.Wait()
	})
}

// wait lets a bubble's time pass.
func (d *drifting) wait(long time.Duration) {
	<-time.After(long)
	synctest.Wait()
}

// somebody changes the rules, so that each Apply finds this drift until it is nil.
func (d *drifting) somebody(drift iptables.Drift) {
	d.backend.mu.Lock()
	defer d.backend.mu.Unlock()
	d.backend.drift, d.backend.applies = drift, 0
}

func (d *drifting) applied() int {
	d.backend.mu.Lock()
	defer d.backend.mu.Unlock()
	return d.backend.applies
}

// told returns the events since the last call, and how many of them have a reason.
func (d *drifting) told(reason string) (n int, all []string) {
	for len(d.events.Events) > 0 {
		e := <-d.events.Events
		if all = append(all, e); strings.HasPrefix(e, "Warning "+reason+" ") {
			n++
		}
	}
	return n, all
}
