package kubelet

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/internal/podnet"
)

func TestClient_pod(t *testing.T) {
	f := newFakeKubelet(t)
	start(t, f)
	f.Put(newPod("a", "1", created(100)), newPod("a", "2", created(200)))
	client, err := NewClient(f.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close() //nolint:errcheck // the test ends
	f.Limited = 3
	if pod, err := client.Pod(t.Context(), "1"); err != nil || pod.UID != "1" {
		t.Errorf("by UID: %v, %v", pod, err)
	}
	if pod, err := client.Named(t.Context(), "shop", "a"); err != nil || pod.UID != "2" {
		t.Errorf("by name: %v, %v", pod, err)
	}
	if _, err := client.Pod(t.Context(), "3"); !errors.Is(err, podnet.ErrNoPod) {
		t.Errorf("unknown UID: %v", err)
	}
	if _, err := client.Named(t.Context(), "shop", "b"); !errors.Is(err, podnet.ErrNoPod) {
		t.Errorf("unknown name: %v", err)
	}
	f.Change(func() { f.Silent = true })
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := client.Named(soon, "shop", "a"); err == nil {
		t.Error("a silent kubelet has answered")
	}
	f.Stop()
	if _, err := client.Pod(t.Context(), "1"); err == nil || !strings.Contains(err.Error(), f.Socket) {
		t.Errorf("without a kubelet: %v", err)
	}
}
