package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Tests whose names begin with TestEarly want an agent that is asked before a pod's first container, by NRI or by the CNI
// chain; hack/e2e.sh installs it with either, and says so by E2E_ENTRANCE. All other tests run with neither, where a pod's
// first packets may come before its rules.
func early() string { return os.Getenv("E2E_ENTRANCE") }

// burst is how many pods start at once, each of which dials out in its first moments.
const burst = 60

// catcher counts connections that reach the world at a port of their own.
type catcher struct {
	port  int
	count atomic.Int64
}

func catchAll(t *testing.T) *catcher {
	t.Helper()
	l, err := net.Listen("tcp", "[::]:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	c := &catcher{port: l.Addr().(*net.TCPAddr).Port}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.count.Add(1)
			_ = conn.Close()
		}
	}()
	return c
}

// dialer is a pod whose only container does nothing but dial the world, from its first instruction on, and ends. It has no
// proxy: what is redirected is refused, and what is not reaches the world.
func dialer(name string, annotations map[string]string, f family, port int) *corev1.Pod {
	pod := newPod(name, annotations, corev1.Container{
		Name: "app", Image: "localhost/testapp:1",
		Args: []string{"dial", "-n=20", "-every=2ms", f.at(1, uint16(port)).String()},
	})
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	return pod
}

func hasEnded(pod *corev1.Pod) error {
	if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
		return fmt.Errorf("it is %s", pod.Status.Phase)
	}
	return nil
}

// Not parallel: it starts as many pods as the node takes.
func TestEarlyNoFirstConnectionBypassesTheProxy(t *testing.T) {
	s := newSpace(t, nil)
	control := catchAll(t)
	s.create(t, dialer("control", nil, families()[0], control.port))
	s.await(t, "control", hasEnded)
	if control.count.Load() == 0 {
		t.Fatal("a pod that did not ask reached nobody: the test would prove nothing")
	}
	caught := catchAll(t)
	began := time.Now()
	for i := range burst {
		s.create(t, dialer(fmt.Sprintf("dialer-%d", i), asked(), families()[i%2], caught.port))
	}
	s.awaitAll(t, burst+1, hasEnded)
	t.Logf("%d pods dialled 20 times each in their first moments, within %s: %d connections bypassed the proxy",
		burst, time.Since(began).Round(time.Millisecond), caught.count.Load())
	if n := caught.count.Load(); n != 0 {
		t.Errorf("%d connections bypassed the proxy", n)
	}
	list, err := s.pods().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for i := range list.Items {
		if pod := &list.Items[i]; pod.Name != "control" && readDetails(t, pod).Entrance != early() {
			t.Errorf("pod %s was programmed by %s", pod.Name, readDetails(t, pod).Entrance)
		}
	}
}

// A pod that cannot be redirected as it asks does not start, says why, and starts when it is mended.
func TestEarlyRefusesWhatCannotBeRedirected(t *testing.T) {
	s := newSpace(t, asked())
	caught := catchAll(t)
	pod := dialer("wrong", map[string]string{keyInitialize: "true", keyExcludeOutbound: "http"}, families()[0], caught.port)
	s.create(t, pod)
	s.await(t, "wrong", hasStatus(statusFailed))
	eventually(t, "the kubelet's event", func(ctx context.Context) error {
		events, err := s.api.CoreV1().Events(s.name).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=wrong"})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Reason == "FailedCreatePodSandBox" && strings.Contains(e.Message, keyExcludeOutbound) {
				return nil
			}
		}
		return errors.New("no event names the annotation")
	})
	s.annotate(t, "wrong", map[string]any{keyExcludeOutbound: "3306"})
	s.await(t, "wrong", hasEnded)
	s.await(t, "wrong", hasStatus(statusInitialized))
	if n := caught.count.Load(); n != 0 {
		t.Errorf("%d connections bypassed the proxy", n)
	}
}

// A runtime that restarts has a new socket: the agent finds it, and pods are redirected from their first packet on again.
func TestEarlyComesBackAfterTheRuntime(t *testing.T) {
	s := newSpace(t, asked())
	s.restartRuntime(t)
	eventually(t, "the runtime asks the agent again", func(ctx context.Context) error {
		m, err := s.readMetrics(ctx)
		if err == nil && early() == "nri" && m.sum(metricPrefix+"nri_connected") != 1 {
			err = errors.New("not connected")
		}
		return err
	})
	caught := catchAll(t)
	s.create(t, dialer("after", asked(), families()[1], caught.port))
	pod := s.await(t, "after", hasEnded)
	if n, by := caught.count.Load(), readDetails(t, pod).Entrance; n != 0 || by != early() {
		t.Errorf("%d connections bypassed the proxy; programmed by %s", n, by)
	}
}
