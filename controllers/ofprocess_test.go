package controllers

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"istio-pod-network-controller/internal/podnet"
)

const processPath = "/proc/7/ns/net"

// The number of a process that has ended is used again, perhaps for a process of another pod.
func TestAPathThroughAProcessThatLeadsToAnotherPodIsNotUsed(t *testing.T) {
	for _, by := range []Hook{Watch, Verify, NRI, CNI} {
		t.Run(string(by), func(t *testing.T) {
			b := newBench(t)
			b.finder.sandboxes["uid-1"] = podnet.Sandbox{ID: "sandbox-1", NetNS: processPath}
			b.ensure(t, Changed)
			known := b.sandbox
			known.ID, known.NetNS = "sandbox-1", processPath
			b.backend.identity[processPath] = podnet.Identity{Ino: 2}
			clear(b.backend.held)
			if _, err := b.Ensure(t.Context(), by, known); !errors.Is(err, podnet.ErrGone) || len(b.backend.held) != 0 {
				t.Errorf("error %v, rules in %v", err, b.backend.held)
			}
			if e, ok := b.Ledger.Of("uid-1"); ok {
				t.Errorf("remembered: %+v", e)
			}
		})
	}
}

// Between the runtime's answer and the look at the path the process may end.
func TestTheRuntimeIsAskedAgainAfterALookAtAProcess(t *testing.T) {
	b := newBench(t)
	b.finder.sandboxes["uid-1"] = podnet.Sandbox{ID: "sandbox-1", NetNS: processPath}
	b.finder.during = func() {
		if b.finder.asked.Load() == 2 {
			b.finder.sandboxes["uid-1"] = podnet.Sandbox{ID: "sandbox-1", NetNS: "/proc/8/ns/net"}
		}
	}
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); !errors.Is(err, podnet.ErrNotReady) || len(b.backend.held) != 0 {
		t.Errorf("error %v, rules in %v", err, b.backend.held)
	}
	b.ensure(t, Changed)
	if b.backend.rules("/proc/8/ns/net") == "" {
		t.Error("the process that the runtime names now was not found")
	}
}

// If the agent cannot open a running process's namespace, waiting does not help: the report says what does.
func TestAProcessThatCannotBeOpenedIsReported(t *testing.T) {
	for _, reason := range []error{podnet.ErrGone, fs.ErrPermission} {
		b := newBench(t)
		b.finder.sandboxes["uid-1"] = podnet.Sandbox{ID: "sandbox-1", NetNS: processPath}
		b.backend.errLook = reason
		result, err := b.Ensure(t.Context(), Watch, b.sandbox)
		if result != Failed || err == nil || absent(err) || !strings.Contains(b.lastReport(t).Message, "processFallback") {
			t.Errorf("%v: result %q, error %v", reason, result, err)
		}
	}
}
