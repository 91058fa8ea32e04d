package controllers

import (
	"errors"
	"testing"

	"istio-pod-network-controller/internal/podnet"
)

// The number of a process that has ended is used again, perhaps for a process of another pod.
func TestAPathThroughAProcessIsAskedForAnew(t *testing.T) {
	const first, second = "/proc/7/ns/net", "/proc/8/ns/net"
	for _, by := range []Entrance{Watch, Sweep, NRI, CNI} {
		t.Run(string(by), func(t *testing.T) {
			b := newBench(t)
			known := b.sandbox
			known.ID, known.NetNS = "sandbox-1", first
			b.finder.sandboxes["uid-1"] = podnet.Sandbox{ID: "sandbox-1", NetNS: second}
			if _, err := b.Ensure(t.Context(), by, known); err != nil {
				t.Fatal(err)
			}
			if b.backend.held[first] != "" || b.backend.held[second] == "" {
				t.Errorf("rules went to %v, want to the path that the runtime tells now", b.backend.held)
			}

			delete(b.finder.sandboxes, "uid-1")
			clear(b.backend.held)
			_, err := b.Ensure(t.Context(), by, known)
			if !errors.Is(err, podnet.ErrNotReady) || len(b.backend.held) != 0 {
				t.Errorf("of a sandbox that the runtime does not know: error %v, rules in %v", err, b.backend.held)
			}
		})
	}
}

// A runtime that tells by itself keeps the watch from asking, unless what it told may be another pod's path by now.
func TestAPathThroughAProcessIsNotRemembered(t *testing.T) {
	b := newBench(t)
	b.Told = []func() bool{func() bool { return true }}
	b.Ledger.Put(Entry{Sandbox: podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "uid-1", ID: "sandbox-1", NetNS: "/proc/7/ns/net"}, State: Programmed})
	b.ensure(t, Changed)
	if b.finder.asked != 1 || b.backend.held["/netns/1"] == "" {
		t.Errorf("asked the runtime %d times, rules in %v", b.finder.asked, b.backend.held)
	}
}
