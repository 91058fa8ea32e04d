package controllers

import (
	"errors"
	"testing"
)

// What cannot be parked waits by retransmissions, and is no failure.
func TestPark_fails_isNoFailure(t *testing.T) {
	b := choosing(t, "edge", &fakeProxies{known: true})
	holding(b).err = errors.New("no capability")
	if b.visit(t); !b.holds() {
		t.Error("it does not hold")
	}
}

// Users of a pod with users of its own have other numbers on the node, and a shared proxy takes only free ports: connections are held alone.
func TestPark_ownUsersOrSharedProxy_isNotParked(t *testing.T) {
	for name, change := range map[string]func(*bench, *fakeProxies){
		"users of its own": func(b *bench, _ *fakeProxies) { b.pods.pod.Spec.HostUsers = new(false) },
		"a shared proxy":   func(_ *bench, p *fakeProxies) { p.shared = true },
	} {
		proxies := &fakeProxies{known: true}
		b := choosing(t, "edge", proxies)
		parking := holding(b)
		change(b, proxies)
		b.visit(t)
		if got := parking.take(); !b.holds() || got != "" {
			t.Errorf("%s: holds %v, calls %q", name, b.holds(), got)
		}
	}
}

// A parked listener would keep the namespace of a pod alive that is gone.
func TestForget_parked_isLeft(t *testing.T) {
	for name, end := range map[string]func(*bench){
		"the sandbox": func(b *bench) { b.Programmer.Forget("sandbox-1") },
		"the pod":     func(b *bench) { b.forgetPod("uid-1") },
	} {
		b := choosing(t, "edge", &fakeProxies{known: true})
		parking := holding(b)
		b.visit(t)
		parking.take()
		end(b)
		if got := parking.take(); got != "leave sandbox-1" {
			t.Errorf("%s: calls %q", name, got)
		}
	}
}
