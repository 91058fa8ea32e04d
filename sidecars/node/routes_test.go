package node

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"istio-pod-network-controller/internal/podnet"
)

// A node whose pods have no proxies any more has no directory of notes, and one where an agent is missing is cleaned by hand.
func TestRemoveEnded_endedSandboxes_haveNoNotes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), routesName)
	there := func() bool {
		_, err := os.Stat(dir)
		return err == nil
	}
	of := func(pod string) podnet.Sandbox { return podnet.Sandbox{UID: pod, ID: "sandbox-" + pod} }
	note := func(pod, profile string) {
		t.Helper()
		l, err := newRoutes(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := l.applied(of(pod), routeTarget{Profile: profile}); err != nil {
			t.Fatal(err)
		}
	}
	note("a", "")
	if there() {
		t.Error("there is a directory without a note")
	}
	note("a", "edge")
	note("b", "edge")
	note("a", "")
	if !there() {
		t.Error("the note of a pod that runs is gone")
	}
	note("b", "")
	if there() {
		t.Error("the directory stays without a note")
	}

	note("a", "edge")
	note("b", "edge")
	running := map[string]bool{"sandbox-b": true}
	clean := func(dryRun bool) bool {
		t.Helper()
		all, err := removeEnded(t.Context(), dir, func(_ context.Context, sandbox string) (bool, error) { return running[sandbox], nil }, dryRun)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if l, err := newRoutes(dir); clean(false) || err != nil || len(l.known) != 2 {
		t.Errorf("%v, error %v", l, err)
	}
	if l, err := newRoutes(dir); err != nil || len(l.known) != 1 || l.known["b"].Now.Profile != "edge" {
		t.Errorf("%v, error %v: want that of the sandbox that runs", l, err)
	}
	running = nil
	if !clean(true) || !there() {
		t.Error("a dry run has removed something, or not said that it would")
	}
	if !clean(false) || there() || clean(false) {
		t.Error("the directory stays")
	}
	if err := os.Mkdir(dir, 0o700); err != nil { // as an agent leaves it that could not write its first note
		t.Fatal(err)
	}
	if !clean(false) || there() {
		t.Error("the empty directory stays")
	}
}
