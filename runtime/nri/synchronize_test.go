package nri

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"istio-pod-network-controller/internal/podnet"
)

func TestSynchronize_onlyQueues(t *testing.T) {
	p, h := newTestPlugin(nil)
	h.err = errors.New("must not fail the runtime")
	pods := []*api.PodSandbox{
		event(nil), event(func(p *api.PodSandbox) { p.Id, p.Uid, p.Namespace = "sandbox-2", "uid-2", "agents" }),
		event(func(p *api.PodSandbox) {
			p.Id, p.Uid, p.Linux.Namespaces = "sandbox-3", "uid-3", p.Linux.Namespaces[:1]
		}), // the host's network
	}
	for i := range queueLength { // more than can wait
		pods = append(pods, event(func(p *api.PodSandbox) { p.Id, p.Uid = fmt.Sprint("more-", i), fmt.Sprint("uid-more-", i) }))
	}
	if _, err := p.Synchronize(t.Context(), pods, nil); err != nil || len(h.asked) != 0 || len(p.queue) != queueLength {
		t.Fatalf("error %v, asked %d, queued %d", err, len(h.asked), len(p.queue))
	}
	h.err = nil
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { p.work(ctx); close(done) }()
	for tick := time.NewTicker(time.Millisecond); len(p.queue) > 0; {
		select {
		case <-tick.C:
		case <-time.After(5 * time.Second):
			t.Fatal("the queue was not worked off")
		}
	}
	cancel()
	<-done
	if _, ok := p.announced.outcomeOf(podnet.Sandbox{ID: "sandbox-1", UID: "uid-1"}); !ok {
		t.Error("a queued sandbox was not remembered")
	}
	if _, ok := p.announced.outcomeOf(podnet.Sandbox{ID: "sandbox-3", UID: "uid-3"}); ok {
		t.Error("a sandbox on the host's network was queued")
	}
}

// A pod whose sandbox is replaced has two for a while. NRI does not say which is newer, so neither ID is queued.
func TestSynchronize_severalSandboxes_leftToTheFinder(t *testing.T) {
	p, _ := newTestPlugin(nil)
	pods := []*api.PodSandbox{
		event(nil), event(func(p *api.PodSandbox) { p.Id = "sandbox-2" }), event(func(p *api.PodSandbox) { p.Id, p.Uid = "sandbox-3", "uid-3" }),
	}
	if _, err := p.Synchronize(t.Context(), pods, nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"", "", "sandbox-3"} {
		if s := <-p.queue; s.ID != want || (s.NetNS == "") != (want == "") {
			t.Errorf("queued %+v, want sandbox %q", s, want)
		}
	}
	if err := p.program(t.Context(), podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "uid-1"}).err; err != nil || len(p.announced.finished) != 0 {
		t.Errorf("a sandbox without an ID is remembered: %v, error %v", p.announced.finished, err)
	}
}

// A process may have ended since the runtime made its list, and its number be that of another pod's.
func TestSynchronize_pathOfAProcess_isLeftToTheFinder(t *testing.T) {
	p, _ := newTestPlugin(nil)
	pod := event(func(p *api.PodSandbox) { p.Linux.Namespaces[1].Path = "/proc/7/ns/net" })
	if _, err := p.Synchronize(t.Context(), []*api.PodSandbox{pod}, nil); err != nil {
		t.Fatal(err)
	}
	if s := <-p.queue; s.ID != "sandbox-1" || s.NetNS != "" {
		t.Errorf("queued %+v", s)
	}
}

func TestSynchronize_sandboxesGone_areForgotten(t *testing.T) {
	p, _ := newTestPlugin(nil)
	for _, id := range []string{"1", "2", "3"} {
		if err := p.RunPodSandbox(t.Context(), event(func(p *api.PodSandbox) { p.Id = id })); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Synchronize(t.Context(), []*api.PodSandbox{event(func(p *api.PodSandbox) { p.Id = "2" })}, nil); err != nil {
		t.Fatal(err)
	}
	if _, ok := p.announced.finished["2"]; !ok || len(p.announced.finished) != 1 {
		t.Errorf("finished %v", p.announced.finished)
	}
}
