package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// catcher counts connections that reach the world at a port of their own, by the address that they were made to.
type catcher struct {
	port int
	mu   sync.Mutex
	got  map[netip.Addr]int
}

func catchAll(t testing.TB) *catcher {
	t.Helper()
	l, err := net.Listen("tcp", "[::]:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	c := &catcher{port: l.Addr().(*net.TCPAddr).Port, got: map[netip.Addr]int{}}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.mu.Lock()
			c.got[conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()]++
			c.mu.Unlock()
			_ = conn.Close()
		}
	}()
	return c
}

// none tells whether no connection came.
func (c *catcher) none() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.got) == 0
}

func (c *catcher) wantNone(t *testing.T) {
	t.Helper()
	if !c.none() {
		t.Errorf("connections bypassed the proxy, by where they went: %v", c.got)
	}
}

// dials is how often a dialer dials.
const dials = 20

// dialer is a pod whose only container does nothing but dial the world, from its first instruction on, and ends. It has no
// proxy and waits for none: what is redirected is refused, and what is not reaches the world. The number tells where: each has an address of its own.
func dialer(name string, annotations map[string]string, number, port int) *corev1.Pod {
	f := families()[number%2]
	annotations = maps.Clone(annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[keyHoldSeconds] = "0"
	pod := newPod(name, annotations, corev1.Container{
		Name: "app", Image: "localhost/testapp:1",
		Args: []string{"dial", fmt.Sprintf("-n=%d", dials), "-every=2ms", "-last=" + corev1.TerminationMessagePathDefault, f.at(byte(1+number/2%250), uint16(port)).String()},
	})
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	return pod
}

// hasDialled is nil for a dialer whose container ran, dialled as often as it was to, and ended.
func hasDialled(pod *corev1.Pod) error {
	for _, c := range pod.Status.ContainerStatuses {
		end := c.State.Terminated
		if !everStarted(end) {
			continue
		}
		var counts struct{ OK, Failed int }
		if err := json.Unmarshal([]byte(end.Message), &counts); err != nil {
			return fmt.Errorf("it ended without counts: %q: %w", end.Message, err)
		}
		if n := counts.OK + counts.Failed; n != dials {
			return fmt.Errorf("it dialled %d times, want %d", n, dials)
		}
		return nil
	}
	return fmt.Errorf("it is %s: %v", pod.Status.Phase, pod.Status.ContainerStatuses)
}

// hasEnded is hasDialled, or nil for a container that ended without having been started: the runtime was restarted between its
// creation and its start. It has dialled nobody, and the kubelet does not start it again.
func hasEnded(pod *corev1.Pod) error {
	for _, c := range pod.Status.ContainerStatuses {
		if end := c.State.Terminated; end != nil && (end.Reason == "StartError" || !everStarted(end)) {
			return nil
		}
	}
	return hasDialled(pod)
}

// everStarted reports whether a container that ended was started before. The API server has no time for one that was not; containerd
// gives the first second of 1970.
func everStarted(end *corev1.ContainerStateTerminated) bool {
	return end != nil && end.StartedAt.Unix() > 0
}

// hasRun reports whether a container of the pod's own was started.
func hasRun(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Running != nil || everStarted(c.State.Terminated)
	})
}

// wave makes one dialer after the other until it is ended.
type wave struct {
	*space
	stop context.CancelFunc
	done sync.WaitGroup
	made int
}

// waveEvery lies between two pods of a wave, and maxPending is how many may wait to be started: the node gets as many as it can start
// beside the trouble that it has.
const (
	waveEvery  = 400 * time.Millisecond
	maxPending = 30
)

func (s *space) wave(t *testing.T, c *catcher) *wave {
	t.Helper()
	s.awaitPolicy(t)
	w := &wave{space: s}
	ctx, cancel := context.WithCancel(t.Context())
	w.stop = cancel
	t.Cleanup(func() { cancel(); w.done.Wait() })
	w.done.Go(func() {
		tick := time.NewTicker(waveEvery)
		defer tick.Stop()
		for ctx.Err() == nil {
			if w.pending(ctx) >= maxPending {
				<-tick.C
				continue
			}
			pod := dialer(fmt.Sprintf("dialer-%d", w.made), asked(), w.made, c.port)
			if _, err := s.pods().Create(context.WithoutCancel(ctx), pod, metav1.CreateOptions{}); err != nil {
				t.Error(err)
				return
			}
			w.made++
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	return w
}

// pending counts the pods that wait to be started. An API server that does not answer has none to tell of.
func (w *wave) pending(ctx context.Context) int {
	list, err := w.pods().List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Pending", ResourceVersion: "0"})
	if err != nil {
		return 0
	}
	return len(list.Items)
}

// end stops the wave and waits until all its pods have dialled, or have ended without.
func (w *wave) end(t *testing.T) {
	t.Helper()
	w.stop()
	w.done.Wait()
	w.awaitAll(t, w.made, hasEnded)
	t.Logf("%d pods dialled %d times each in their first moments", w.made, dials)
}
