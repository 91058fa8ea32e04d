package nri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"

	"istio-pod-network-controller/internal/podnet"
)

// newRuntime is the runtime's end of NRI, as containerd and CRI-O have it.
func newRuntime(t *testing.T) (runtime *adaptation.Adaptation, socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "nri") //nolint:usetesting // its names are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "nri.sock")
	catchUp := func(ctx context.Context, plugin adaptation.SyncCB) error { _, err := plugin(ctx, nil, nil); return err }
	update := func(context.Context, []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
		return nil, nil
	}
	runtime, err = adaptation.New("test", "1", catchUp, update,
		adaptation.WithSocketPath(socket), adaptation.WithPluginPath(dir), adaptation.WithPluginConfigPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := runtime.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		runtime.Stop()
		_ = os.RemoveAll(dir)
	})
	return runtime, socket
}

// connectAgent returns an agent with the default name and index, once it is connected and the runtime calls it.
func connectAgent(t *testing.T, runtime *adaptation.Adaptation, socket string) (h *fakeHandler, stop func()) {
	t.Helper()
	h = &fakeHandler{}
	e, err := New(Config{Socket: socket, Handler: h})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(logr.NewContext(t.Context(), logr.Discard()))
	done := make(chan error, 1)
	go func() { done <- e.Start(ctx) }()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for connected := false; !connected || !h.knows("first"); connected = e.Connected() {
		if connected {
			if err := startPod(t, runtime, "first"); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("never connected")
		}
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return h, stop
}

func (h *fakeHandler) knows(sandboxID string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.asked, func(s podnet.Sandbox) bool { return s.ID == sandboxID })
}

// startPod has the runtime start a pod with one container.
func startPod(t *testing.T, runtime *adaptation.Adaptation, sandboxID string) error {
	t.Helper()
	pod := event(func(p *api.PodSandbox) { p.Id = sandboxID })
	if err := runtime.RunPodSandbox(t.Context(), &adaptation.RunPodSandboxRequest{Pod: pod}); err != nil {
		return err
	}
	_, err := runtime.CreateContainer(t.Context(), &adaptation.CreateContainerRequest{Pod: pod, Container: &api.Container{Id: "c", PodSandboxId: sandboxID}})
	return err
}

// During an update the new agent connects with the old one's name and index, and the old one disconnects while pods start: no pod is
// refused, and each is seen by one of the two at least.
func TestNoPodStartsUnseenWhileOneAgentTakesOverFromAnother(t *testing.T) {
	runtime, socket := newRuntime(t)
	older, stopOlder := connectAgent(t, runtime, socket)
	var newer *fakeHandler
	stopped := make(chan struct{})
	tick := time.NewTicker(5 * quietGap)
	defer tick.Stop()
	const pods = 24
	for i := range pods {
		if i == pods/3 {
			newer, _ = connectAgent(t, runtime, socket)
		}
		id := fmt.Sprint(i)
		if err := startPod(t, runtime, id); err != nil {
			t.Errorf("pod %d is refused: %v", i, err)
		}
		byOlder, byNewer := older.knows(id), newer != nil && newer.knows(id)
		both := i >= pods/3 && i <= 2*pods/3
		if unseen := !byOlder && !byNewer; unseen || both && byOlder != byNewer {
			t.Errorf("pod %d: the old agent was asked: %v, the new one: %v", i, byOlder, byNewer)
		}
		if i == 2*pods/3 {
			go func() { defer close(stopped); stopOlder() }()
		}
		<-tick.C
	}
	<-stopped
	if older.knows(fmt.Sprint(pods - 1)) {
		t.Error("the old agent has not disconnected")
	}
}

// A pod that either agent refuses does not start, though the other one agrees.
func TestWhatOneOfTwoAgentsRefusesDoesNotStart(t *testing.T) {
	runtime, socket := newRuntime(t)
	older, _ := connectAgent(t, runtime, socket)
	newer, _ := connectAgent(t, runtime, socket)
	for i, h := range []*fakeHandler{older, newer} {
		h.refuse(errors.New("cannot write rules"))
		if err := startPod(t, runtime, fmt.Sprint(i)); err == nil {
			t.Error("the pod starts")
		}
		h.refuse(nil)
	}
	if err := startPod(t, runtime, "0"); err != nil {
		t.Errorf("once both can, the pod is refused: %v", err)
	}
}

func (h *fakeHandler) refuse(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
}
