package agent

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/client-go/tools/events"

	"istio-pod-network-controller/runtime/cni/install"
)

// The node's administrator looks at the node's events, not into the agent's log.
func TestFaultsOfTheChainAreEventsOnTheNode(t *testing.T) {
	recorder := events.NewFakeRecorder(10)
	notify := nodeEvents(recorder, "node1")
	for _, kind := range []install.EventKind{install.BinaryPlaced, install.Chained, install.Repaired, install.Removed} {
		notify(install.Event{Kind: kind, Path: "/etc/cni/net.d/10-net.conflist", Err: errors.New("none")})
	}
	if n := len(recorder.Events); n != 0 {
		t.Errorf("%d events of what is in order", n)
	}
	for _, kind := range []install.EventKind{
		install.Contended, install.Failed, install.Waiting, install.OtherBinary, install.NotCalled, install.Leftover,
	} {
		notify(install.Event{Kind: kind, Path: "/etc/cni/net.d", Err: errors.New("the reason")})
		if got, want := <-recorder.Events, "Warning CNIChain"+string(kind)+" /etc/cni/net.d: the reason"; !strings.HasPrefix(got, want) {
			t.Errorf("event %q, want %q", got, want)
		}
	}
	if n := len(recorder.Events); n != 0 {
		t.Errorf("%d events of what is in order", n)
	}
}
